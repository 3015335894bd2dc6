"""Entries of a tool YAML that other plugins run: MCP servers, Sandbox Fusion."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, Toolset
from toolrl_common.other_plugins import build_of_plugin
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry

_MCP_CLASSES = (None, "verl.tools.mcp_base_tool.MCPBaseTool", "verl.tools.mcp_search_tool.MCPSearchTool")
_SANDBOX_OPTIONS = (
    "sandbox_fusion_url", "num_workers", "rate_limit", "enable_global_rate_limit", "default_timeout",
    "default_language", "memory_limit_mb",
)  # fmt: skip
_USED: dict[str, tuple[Sequence[str], str]] = {
    "mcp": (("use_mcp",), "set `policy.timeout` and `policy.rate` of the tool in the toolrl config"),
    "sandbox_fusion": (_SANDBOX_OPTIONS, "more can be set where the tool `code_interpreter` is used by itself"),
}
"""By type, the keys of `config` that are used, and what to do about others."""
SANDBOX_TOOL = "code_interpreter"
_log = logging.getLogger(__name__)


def mcp_toolset(entry: ToolYamlEntry, context: BuildContext) -> Toolset:
    """The servers of `mcp.mcp_servers_config_path`, by the plugin `mcp`. Raises ConfigError."""
    if entry.class_name not in _MCP_CLASSES:
        raise ConfigError(
            f"class_name {entry.class_name!r}: a subclass of MCPBaseTool isn't run; the plugin `mcp` reads the results",
            where=entry.place,
            hint="Leave class_name out, or wrap the call in a BaseTool of type native.",
        )
    path = entry.mcp.get("mcp_servers_config_path")
    if not isinstance(path, str) or not path:
        raise ConfigError("no mcp.mcp_servers_config_path", where=entry.place)
    selected = entry.mcp.get("tool_selected_list") or []
    if not isinstance(selected, list) or not all(isinstance(name, str) for name in selected):
        raise ConfigError("mcp.tool_selected_list isn't a list of names", where=entry.place)
    _tell_ignored(entry)
    options = {"config": str(Path(path).expanduser()), "include": selected, "names": "short"}
    return _built("mcp/mcp", "mcp", options, entry, context)


def sandbox_toolset(entry: ToolYamlEntry, context: BuildContext, *, compat: str | None) -> Toolset:
    """`code_interpreter` of the plugin `sandbox-fusion`. Raises ConfigError."""
    function = (entry.tool_schema or {}).get("function") or {}
    name = function.get("name", SANDBOX_TOOL)
    if name != SANDBOX_TOOL:
        raise ConfigError(
            f"the sandbox's tool is called {SANDBOX_TOOL!r}, and tool_schema names it {name!r}",
            where=entry.place,
            hint=f"Write {SANDBOX_TOOL!r} there and rename it in the toolrl config: as: {{{SANDBOX_TOOL}: {name}}}.",
        )
    _tell_ignored(entry)
    options: dict[str, Any] = {key: entry.config[key] for key in _SANDBOX_OPTIONS if entry.config.get(key) is not None}
    if isinstance(function.get("description"), str) and function["description"]:
        options["description"] = function["description"]
    if compat is not None:
        options["compat"] = compat
    return _built("sandbox-fusion/code_interpreter", "sandbox", options, entry, context)


def ignored(entry: ToolYamlEntry) -> tuple[list[str], str]:
    """Keys of an entry's `config` that aren't used, and what to do instead."""
    used, instead = _USED.get(entry.type, (entry.config, ""))
    return sorted(set(map(str, entry.config)) - set(used)), instead


def _tell_ignored(entry: ToolYamlEntry) -> None:
    keys, instead = ignored(entry)
    if keys:
        _log.warning("%s: config.%s isn't used; %s", entry.place, ", config.".join(keys), instead)


def _built(name: str, extra: str, options: dict[str, Any], entry: ToolYamlEntry, context: BuildContext) -> Toolset:
    def missing(message: str) -> ConfigError:
        problem = f"type {entry.type} needs the plugin {name.partition('/')[0]!r}: {message}"
        return ConfigError(problem, where=entry.place, hint=f"pip install 'toolrl-plugin-verl[{extra}]'")

    built: Toolset = build_of_plugin("tools", name, options, context, entry.place, missing)
    return built
