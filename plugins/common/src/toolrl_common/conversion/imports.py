"""What a Python file of the user's imports of another system, found without running it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from toolrl_common.conversion.settings import Conversion, expanded


@dataclass
class Imports:
    """Reports what files, and those that they import in turn, import of a system that nothing here stands in for."""

    settings: Conversion
    tops: tuple[str, ...]
    """The system's packages."""
    own: Callable[[str], str | None]
    """The user's file of a module of these packages."""
    stand_in: Callable[[str], str | None]
    """The module here that stands in for one."""
    package: Callable[[Path], str] = lambda _: ""
    """The package that a file is in, for its relative imports."""
    _seen: set[str] = field(default_factory=set)

    def look(self, path: str) -> None:
        """Look into a file once."""
        if path in self._seen:
            return
        self._seen.add(path)
        file = Path(expanded(path))
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except OSError:
            self.settings.remark(f"{path} isn't here; it has to be where the run starts")
            return
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.settings.remark(f"{path} can't be read as Python: {error}")
            return
        for name in _imported(tree, self.package(file)):
            module = name.rpartition(".")[0]
            own = self.own(name) or (self.own(module) if module else None)
            if own is not None:
                self.look(own)
            elif name.partition(".")[0] in self.tops and not self._has(name):
                self.settings.lose(f"{path}: {name}", "toolrl has no stand-in for it: take the import out")

    def _has(self, name: str) -> bool:
        module, _, attribute = name.rpartition(".")
        real = self.stand_in(module) if module else None
        there = real is not None and (attribute == "*" or hasattr(importlib.import_module(real), attribute))
        return there or self.stand_in(name) is not None


def _imported(tree: ast.Module, package: str) -> list[str]:
    """`module.name` of each import."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            names += [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]
    return names
