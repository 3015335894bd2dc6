"""A component's descriptor: what a plugin registers.

A descriptor holds strings, not objects: listing imports nothing heavy, and a descriptor pickles to a worker, which
resolves its target there.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toolrl.errors import ComponentLoadError

T = TypeVar("T", covariant=True)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


@dataclass(frozen=True, slots=True)
class Component(Generic[T]):
    """One thing that a plugin gives. `T` is the protocol that calling the target must give; it is there for readers and
    type checkers."""

    name: str
    """What a config calls it. Letters, digits, `_`, `-` and `.`; reachable as `plugin/name` too."""
    target: str
    """`package.module:attribute`, called as `target(options, context)`."""
    summary: str = ""
    """One line for `toolrl list-plugins`."""
    options: str | None = None
    """`package.module:Model`, a pydantic model of its options; None where it has none. Where the model has a method
    `check_files()`, `toolrl config check` and a run's start call it: it raises a ToolrlError for a missing file.
    `model_problem(folder)`, called with the model's path, returns the problem that a model there has for the component.
    The options of a reward may follow `toolrl.protocols.ChecksTasks`."""
    check: str | None = None
    """`package.module:function`, called without arguments by `toolrl doctor`: returns a line that says what it found,
    raises where the component can't work here."""
    short: bool = True
    """False where only `plugin/name` reaches it: for names of another library, which other plugins may give, too."""
    every_run: bool = False
    """For an observer: True where it observes every run, also those whose config doesn't name it."""
    fallback: bool = False
    """True where a component of this name takes its place as soon as another plugin that has one is installed."""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"component name {self.name!r}: use a letter, then letters, digits, '_', '-' or '.'")
        for field in ("target", "options", "check"):
            value = getattr(self, field)
            if value is not None and not _TARGET.match(value):
                raise ValueError(f"component {self.name!r}: {field} is {value!r}, expected 'package.module:attribute'")

    def load(self) -> Any:
        """Import the target. Raises ComponentLoadError."""
        return self._import(self.target, "target")

    def load_options(self) -> Any:
        """Import the options model, or None. Raises ComponentLoadError."""
        return self._import(self.options, "options") if self.options else None

    def load_check(self) -> Any:
        """Import the self-check, or None. Raises ComponentLoadError."""
        return self._import(self.check, "check") if self.check else None

    def _import(self, path: str, what: str) -> Any:
        module_name, _, attribute = path.partition(":")
        try:
            value: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                value = getattr(value, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() and the like in a plugin's module, too
            raise ComponentLoadError(
                f"component {self.name!r}: its {what} {path!r} can't be imported: {type(error).__name__}: {error}",
            ) from error
        return value
