"""The user's classes in `envs`, read without being run: which there are, and whether they can run here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from toolrl_plugin_rlfactory import envs, managers
from toolrl_plugin_rlfactory.convert.report import Report
from toolrl_plugin_rlfactory.convert.settings import Settings

CLASSES = "Env, SearchEnv, ToolManager and the managers of RLFactory that toolrl has"
CHANGE = "change its import lines to toolrl_plugin_rlfactory.envs and toolrl_plugin_rlfactory.managers"
_DEEPEST = 20


def class_beside(settings: Settings, file: str, base: str) -> str | None:
    """The last class of a file in `envs`, beside the script or here, that derives from one called `…base`; as
    `file.py:Class`."""
    for path in (folder / "envs" / file for folder in (settings.folder, Path())):
        nodes = class_nodes(path)
        found = [node.name for node in nodes if any(ast.unparse(item).endswith(base) for item in node.bases)]
        if found:
            return f"{path.as_posix()}:{found[-1]}"
    return None


def derives(reference: str, depth: int = 0) -> bool:
    """Whether a `file.py:Class` derives from a class that toolrl has, by way of files beside it or not."""
    source, _, name = reference.rpartition(":")
    file = Path(source)
    nodes = {node.name: node for node in class_nodes(file)}
    if name not in nodes or depth > _DEEPEST:
        return False
    for base in (ast.unparse(item).rpartition(".")[2] for item in nodes[name].bases):
        places = [file] if base in nodes else [place for imported, place in _imports(file) if imported == base]
        if _is_there(base) or any(derives(f"{place}:{base}", depth + 1) for place in places):
            return True
    return False


def look_at_imports(reference: str, report: Report) -> None:
    """Say what is to change in a file's imports, and what of them nothing here stands in for."""
    report.remark(f"{reference}: {CHANGE}")
    file = Path(reference.rpartition(":")[0])
    for name, place in _imports(file):
        if not _is_there(name) and not place.is_file():
            report.lose(f"{file.as_posix()}: {name}", "toolrl has no stand-in for it: take the import out")


def class_nodes(file: Path) -> list[ast.ClassDef]:
    """The classes of a file; none of one that can't be read."""
    return [node for node in _body(file) if isinstance(node, ast.ClassDef)]


def _is_there(name: str) -> bool:
    return name == "*" or hasattr(envs, name) or hasattr(managers, name)


def _imports(file: Path) -> Iterator[tuple[str, Path]]:
    """Each name that a file imports of RLFactory's `envs`, of verl or of a file beside it, and that file's path."""
    for node in _body(file):
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and (node.level or module.partition(".")[0] in ("envs", "verl")):
            for alias in node.names:
                yield alias.name, file.parent / f"{module.rpartition('.')[2]}.py"


def _body(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
