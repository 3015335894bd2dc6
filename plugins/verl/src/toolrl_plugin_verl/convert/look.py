"""Looks into the tool YAML that a config names, where it is there, for settings that aren't carried over."""

from __future__ import annotations

from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, expanded
from toolrl_common.references import kept
from toolrl_plugin_verl.classes import STAND_INS, own_file
from toolrl_plugin_verl.others import ignored
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml


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
        if entry.type != "native" or name in STAND_INS or own_file(name) is not None:
            continue
        if name.startswith("verl."):
            settings.lose(name, f"this class of verl's isn't there; {', '.join(STAND_INS)} are")
        else:
            settings.remark(f"{name} isn't below this folder: name its folder in `python_path`")


def _look_at_servers(entry: ToolYamlEntry, settings: Conversion) -> None:
    path = entry.mcp.get("mcp_servers_config_path") if entry.type == "mcp" else None
    if isinstance(path, str) and not Path(expanded(path)).is_file():
        settings.remark(f"mcp_servers_config_path: {path} isn't here; it has to be where the run starts")
