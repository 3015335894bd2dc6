"""Looks into the files that a config names, where they are there, for what will keep it from running."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, Imports, expanded
from toolrl_common.references import kept
from toolrl_plugin_verl.imports import STAND_INS, check_module, own_file, own_spec, search_folders, stand_in
from toolrl_plugin_verl.others import ignored
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml


def look_at_tools(path: str, settings: Conversion) -> None:
    """Classes that aren't there, or import what isn't, and what is set in vain."""
    if not Path(expanded(path)).is_file():
        settings.remark(f"tool_config_path: {path} isn't here; it has to be where the run starts")
        return
    try:
        entries = read_tool_yaml(expanded(path), kept)
    except ConfigError as error:
        settings.lose("tool_config_path", str(error))
        return
    for entry in entries:
        keys, instead = ignored(entry)
        for key in keys:
            settings.lose(f"{entry.place}.config.{key}", f"it isn't used; {instead}")
        servers = entry.mcp.get("mcp_servers_config_path") if entry.type == "mcp" else None
        if isinstance(servers, str) and not Path(expanded(servers)).is_file():
            settings.remark(f"mcp_servers_config_path: {servers} isn't here; it has to be where the run starts")
        _look_at_class(entry, settings)


def look_at_python(path: str, settings: Conversion) -> None:
    """A file of tools or functions."""
    installed = PathFinder.find_spec("verl")
    if installed is None or installed.origin is None:
        folders = search_folders(())
        Imports(settings, ("verl",), lambda name: getattr(own_spec(name, folders), "origin", None), stand_in).look(path)


def _look_at_class(entry: ToolYamlEntry, settings: Conversion) -> None:
    name = entry.class_name or ""
    own = own_file(name, ()) if name and entry.type != "mcp" else None
    if own is not None:
        if name in STAND_INS:
            settings.remark(f"{name}: {own} is used, and not toolrl's class of this name")
        look_at_python(own, settings)
    elif entry.type == "native":
        try:
            check_module(name, (), entry.place)
        except ConfigError as error:
            settings.lose(name, str(error))
