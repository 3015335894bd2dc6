"""Reads verl's tool YAML.

    tools:
      - class_name: "my_tools.YourTool"
        config: {type: native, …}
        tool_schema: {type: function, function: {…}}
      - class_name: "verl.tools.mcp_search_tool.MCPSearchTool"
        config: {type: mcp}
        mcp: {mcp_servers_config_path: mcp_server.json, tool_selected_list: [search]}
      - config: {type: sandbox_fusion, sandbox_fusion_url: "${oc.env:SANDBOX_URL}"}

`type` may be left out, as in verl's first versions; then the class decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError
from toolrl_common.references import References, Variable, from_environ

Type = Literal["native", "mcp", "sandbox_fusion"]
TYPES: tuple[Type, ...] = ("native", "mcp", "sandbox_fusion")
_OF_CLASS: dict[str, Type] = {
    "verl.tools.mcp_base_tool.MCPBaseTool": "mcp",
    "verl.tools.mcp_search_tool.MCPSearchTool": "mcp",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "sandbox_fusion",
}


@dataclass(frozen=True)
class ToolYamlEntry:
    """One entry of `tools:`."""

    place: str
    """`FILE: tools[0]`, for messages."""
    type: Type
    class_name: str | None
    config: Mapping[str, Any] = field(repr=False)
    """As a tool's class gets it: of a native tool `type` included, where it is given. May hold secrets."""
    tool_schema: Mapping[str, Any] | None = None
    mcp: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_tool_yaml(path: str, variable: Variable = from_environ, *, where: str | None = None) -> list[ToolYamlEntry]:
    """The entries, references resolved. Raises ConfigError."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(
            f"tool_config_path: {path!r} can't be read: {reason}",
            where=where,
            hint="A relative path starts at the folder that the command runs in.",
        ) from None
    try:
        tree, problems = parse_yaml(text, path)
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=path) from None
    if problems:
        raise ConfigError(problems, where=path)
    tools = References(tree, variable, path).resolve(tree).get("tools") if isinstance(tree, dict) else None
    if not isinstance(tools, list) or not tools:
        raise ConfigError("no list `tools:` with at least one entry", where=path)
    return [_entry(item, f"{path}: tools[{number}]") for number, item in enumerate(tools)]


def _entry(item: Any, place: str) -> ToolYamlEntry:
    if not isinstance(item, dict):
        raise ConfigError(f"{type(item).__name__}, expected class_name, config and tool_schema", where=place)
    given = {key: item[key] for key in ("class_name", "config", "tool_schema", "mcp") if item.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, str if key == "class_name" else dict):
            expected = "`module.Class`" if key == "class_name" else "an object"
            raise ConfigError(f"{key} is {type(value).__name__}, expected {expected}", where=place)
    config, class_name = given.get("config", {}), given.get("class_name") or None
    kind = config.get("type") or ("mcp" if config.get("use_mcp") else _OF_CLASS.get(class_name or "", "native"))
    if class_name in _OF_CLASS and kind == "native":
        kind = _OF_CLASS[class_name]
    elif class_name not in (None, *_OF_CLASS) and kind == "sandbox_fusion":
        kind = "native"  # A class of the user's, derived from verl's.
    if kind not in TYPES:
        raise ConfigError(f"config.type is {kind!r:.80}, expected one of {', '.join(TYPES)}", where=place)
    if kind == "native" and class_name is None:
        raise ConfigError("no class_name", where=place, hint="Name the tool's class: `module.Class`.")
    return ToolYamlEntry(
        place=place,
        type=cast("Type", kind),
        class_name=class_name,
        config={key: value for key, value in config.items() if key != "type" or kind == "native"},
        tool_schema=given.get("tool_schema") or None,
        mcp=given.get("mcp", {}),
    )
