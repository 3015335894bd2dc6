"""The user's classes in `envs`, read without being run: which there are, and whether they can run here."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from toolrl_plugin_rlfactory import envs, managers
from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion
from toolrl_plugin_rlfactory.imports import STAND_INS, own_spec, place_of

CLASSES = "Env, SearchEnv, ToolManager and the managers of RLFactory that toolrl has"
_DEEPEST = 20


def class_beside(settings: RLFactoryConversion, file: str, base: str) -> str | None:
    """The last class of a file in `envs`, beside the script or here, that derives from one called `…base`; as
    `file.py:Class`."""
    for path in (folder / "envs" / file for folder in (settings.folder, Path())):
        nodes = class_nodes(path)
        found = [node.name for node in nodes if any(ast.unparse(item).endswith(base) for item in node.bases)]
        if found:
            return f"{path.as_posix()}:{found[-1]}"
    return None


def derives(reference: str, depth: int = 0) -> bool:
    """Whether a `file.py:Class` derives from a class that toolrl has, by way of the user's other files or not."""
    source, _, name = reference.rpartition(":")
    file = Path(source)
    nodes = {node.name: node for node in class_nodes(file)}
    if name not in nodes or depth > _DEEPEST:
        return False
    imports = {imported: (module, own) for module, imported, own in _imports(file)}
    for base in (ast.unparse(item).rpartition(".")[2] for item in nodes[name].bases):
        module, own = imports.get(base, ("", file if base in nodes else None))
        if derives(f"{own}:{base}", depth + 1) if own is not None else _is_there(module, base):
            return True
    return False


def look_at_imports(reference: str, settings: RLFactoryConversion) -> None:
    """Say what a file imports that nothing here stands in for."""
    file = Path(reference.rpartition(":")[0])
    for module, name, own in _imports(file):
        if own is None and not _is_there(module, name):
            settings.lose(f"{file.as_posix()}: {module}.{name}", "toolrl has no stand-in for it: take the import out")


def class_nodes(file: Path) -> list[ast.ClassDef]:
    """The classes of a file; none of one that can't be read."""
    return [node for node in _body(file) if isinstance(node, ast.ClassDef)]


def _is_there(module: str, name: str) -> bool:
    if not module:  # Imported from this package, or by some other way.
        return hasattr(envs, name) or hasattr(managers, name)
    real = STAND_INS.get(module)
    return real is not None and (name == "*" or hasattr(importlib.import_module(real), name))


def _imports(file: Path) -> Iterator[tuple[str, str, Path | None]]:
    """Each name that a file imports of `envs` or `verl`: its module, itself, and the user's file that has it, if one
    does."""
    package, root = place_of(file)
    for node in _body(file):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        if module.partition(".")[0] in ("envs", "verl"):
            own = own_spec(module, root)
            for alias in node.names:
                yield module, alias.name, Path(own.origin) if own is not None and own.origin else None


def _body(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
