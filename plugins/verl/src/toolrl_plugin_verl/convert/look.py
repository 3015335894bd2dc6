"""Looks into the files that a config names, where they are there, for what will keep it from running."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, expanded
from toolrl_common.references import kept
from toolrl_plugin_verl.classes import STAND_INS, own_file
from toolrl_plugin_verl.imports import own_spec, search_folders, stand_in
from toolrl_plugin_verl.others import ignored
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml

_MOST_CHARS = 1_000_000


def look_at_tools(path: str, settings: Conversion) -> None:
    """Classes that aren't there, or import what isn't."""
    file = Path(expanded(path))
    if not file.is_file():
        settings.remark(f"tool_config_path: {path} isn't here; it has to be where the run starts")
        return
    try:
        entries = read_tool_yaml(str(file), kept)
    except ConfigError as error:
        settings.lose("tool_config_path", f"{error.where}: {error.problems[0]}")
        return
    for entry in entries:
        keys, instead = ignored(entry)
        for key in keys:
            settings.lose(f"{entry.place}.config.{key}", f"it isn't used; {instead}")
        _look_at_servers(entry, settings)
        name = entry.class_name or ""
        own = own_file(name) if name and entry.type != "mcp" else None
        if own is not None:
            if name in STAND_INS:
                settings.remark(f"{name}: {own} is used, and not toolrl's class of this name")
            look_at_python(own, settings)
        elif entry.type != "native" or name in STAND_INS:
            continue
        elif name.startswith("verl."):
            settings.lose(name, f"this class of verl's isn't there; {', '.join(STAND_INS)} are")
        else:
            settings.remark(f"{name} isn't below this folder: name its folder in `python_path`")


def _look_at_servers(entry: ToolYamlEntry, settings: Conversion) -> None:
    path = entry.mcp.get("mcp_servers_config_path") if entry.type == "mcp" else None
    if isinstance(path, str) and not Path(expanded(path)).is_file():
        settings.remark(f"mcp_servers_config_path: {path} isn't here; it has to be where the run starts")


def look_at_python(path: str, settings: Conversion) -> None:
    """A file of tools or functions, for what it imports of verl that toolrl has no stand-in for."""
    file = Path(expanded(path))
    try:
        tree = ast.parse(file.read_text(encoding="utf-8")[:_MOST_CHARS])
    except OSError:
        settings.remark(f"{path} isn't here; it has to be where the run starts")
        return
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        settings.remark(f"{path} can't be read as Python: {error}")
        return
    installed = PathFinder.find_spec("verl")
    if installed is not None and installed.origin is not None:
        return
    for name in _imported_of_verl(tree):
        if own_spec(name.rpartition(".")[0], search_folders(())) is None and not _is_there(name):
            settings.lose(f"{path}: {name}", "toolrl has no stand-in for it: install verl, or take the import out")


def _imported_of_verl(tree: ast.Module) -> Iterator[str]:
    """`verl.module.name` for each name that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "verl")


def _is_there(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if stand_in(name) is not None or (attribute == "*" and stand_in(module) is not None):
        return True
    real = stand_in(module) if module else None
    return real is not None and hasattr(importlib.import_module(real), attribute)
