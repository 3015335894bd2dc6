"""The toolset `verl`: the tools of a tool YAML and of a file of function tools.

Files are read and classes imported when the run is put together; the tools themselves are made when it starts, in the
thread in which they run. MCP servers and Sandbox Fusion are those of the plugins `mcp` and
`sandbox-fusion`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError, ToolrlError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.tools import as_toolset
from toolrl.tools.toolset import known_traits, tool_names
from toolrl.tools.traits import ToolTraits
from toolrl.types import Task
from toolrl_common.other_plugins import build_of_plugin
from toolrl_common.references import from_environ
from toolrl_plugin_verl.adapter import LoopThread, VerlTool
from toolrl_plugin_verl.functions import as_tool, load_functions
from toolrl_plugin_verl.imports import find_class, import_hint, own_file
from toolrl_plugin_verl.options import VerlToolOptions
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema

SHORTEST_SECRET = 4
"""Shorter values are in too many texts to be taken out of them."""
_MCP_CLASSES = (None, "verl.tools.mcp_base_tool.MCPBaseTool", "verl.tools.mcp_search_tool.MCPSearchTool")
_SANDBOX_OPTIONS = (
    "sandbox_fusion_url", "num_workers", "rate_limit", "enable_global_rate_limit", "default_timeout",
    "default_language", "memory_limit_mb",
)  # fmt: skip
_SANDBOX_TOOL = "code_interpreter"


class VerlToolset:
    """See the module's docstring."""

    def __init__(self, options: VerlToolOptions, context: BuildContext) -> None:
        """Raises ConfigError for files that can't be used."""
        self._options = options
        self._context = context
        where = context.where or None
        self._secrets: set[str] = set()
        path = options.tool_config_path
        entries = read_tool_yaml(path, self._variable, where=where) if path else []
        functions = load_functions(options.function_tool_path, where) if options.function_tool_path else []
        self._functions = tuple(functions)
        native = [entry for entry in entries if self._is_native(entry)]
        self._classes = tuple(
            (entry, find_class(entry.class_name or "", options.python_path, entry.place)) for entry in native
        )
        self._others = tuple(self._other(entry) for entry in entries if entry not in native)
        self._loop = LoopThread(f"verl tools {context.where or context.name}")
        self._joined: Toolset | None = None

    def names(self) -> Sequence[str] | None:
        """What the model can call; None before the tools are made."""
        return tool_names(self._joined) if self._joined is not None else None

    def traits(self, name: str) -> ToolTraits:
        """The traits that a tool declares."""
        return known_traits(self._joined).get(name, ToolTraits()) if self._joined is not None else ToolTraits()

    async def start(self) -> None:
        """Make the tools. Raises ToolsetError that names the one that can't be made; then nothing stays behind."""
        self._loop.start()
        try:
            made: list[Any] = [await self._made(entry, cls) for entry, cls in self._classes]
            made += [self._function(entry) for entry in self._functions]
            self._joined = as_toolset([*made, *self._others], None, self._context)
            await self._joined.start()
        except BaseException:
            await self.stop()
            raise

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        """An instance of each tool that the task wants."""
        assert self._joined is not None, "start() comes first"
        async with self._joined.open(task, episode) as session:
            yield session

    async def stop(self) -> None:
        """Stop servers and the tools' thread."""
        joined, self._joined = self._joined, None
        try:
            if joined is not None:
                await joined.stop()
        finally:
            await self._loop.stop()

    async def _made(self, entry: ToolYamlEntry, cls: Any) -> VerlTool:
        try:
            schema = None
            if entry.tool_schema is not None:
                schema = OpenAIFunctionToolSchema.model_validate(entry.tool_schema)
            tool = await self._loop.call(cls, config=copy.deepcopy(dict(entry.config)), tool_schema=schema)
            return VerlTool(tool, self._loop, step_rewards=self._options.step_rewards, hide=self._hidden)
        except ToolrlError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool's constructor raises
            reason = self._hidden(f"{type(error).__name__}: {error}")
            hint = self._hidden(import_hint(error) or "") or None
            raise ToolsetError(f"{entry.class_name} can't be made: {reason}", where=entry.place, hint=hint) from None

    def _is_native(self, entry: ToolYamlEntry) -> bool:
        """Also true where the user has a file of their own for verl's class."""
        own = own_file(entry.class_name, self._options.python_path) if entry.class_name else None
        return entry.type == "native" or (own is not None and entry.type == "sandbox_fusion")

    def _variable(self, name: str, default: str | None) -> str | None:
        """An environment variable for the tool YAML; its value is hidden afterwards."""
        self._secrets.add(os.environ.get(name, ""))
        return from_environ(name, default)

    def _hidden(self, text: str) -> str:
        """A text without what the tool YAML took from environment variables."""
        for value in sorted(self._secrets, key=len, reverse=True):
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, "…")
        return text

    def _function(self, entry: Any) -> Any:
        try:
            return as_tool(entry, self._loop, step_rewards=self._options.step_rewards)
        except (TypeError, ValueError) as error:
            raise ToolsetError(str(error), where=self._options.function_tool_path) from error

    def _other(self, entry: ToolYamlEntry) -> Toolset:
        if entry.type == "mcp":
            return _mcp_toolset(entry, self._context)
        return _sandbox_toolset(entry, self._context)


# Entries of a tool YAML that other plugins run.


def _mcp_toolset(entry: ToolYamlEntry, context: BuildContext) -> Toolset:
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
    options = {"config": str(Path(path).expanduser()), "include": selected, "names": "short"}
    return _built("mcp/mcp", "mcp", options, entry, context)


def _sandbox_toolset(entry: ToolYamlEntry, context: BuildContext) -> Toolset:
    """`code_interpreter` of the plugin `sandbox-fusion`. Raises ConfigError."""
    function = (entry.tool_schema or {}).get("function") or {}
    name = function.get("name", _SANDBOX_TOOL)
    if name != _SANDBOX_TOOL:
        raise ConfigError(
            f"the sandbox's tool is called {_SANDBOX_TOOL!r}, and tool_schema names it {name!r}",
            where=entry.place,
            hint=f"Write {_SANDBOX_TOOL!r} there and rename it in the toolrl config: as: {{{_SANDBOX_TOOL}: {name}}}.",
        )
    options: dict[str, Any] = {key: entry.config[key] for key in _SANDBOX_OPTIONS if entry.config.get(key) is not None}
    if isinstance(function.get("description"), str) and function["description"]:
        options["description"] = function["description"]
    return _built("sandbox-fusion/code_interpreter", "sandbox", options, entry, context)


def _built(name: str, extra: str, options: dict[str, Any], entry: ToolYamlEntry, context: BuildContext) -> Toolset:
    def missing(message: str) -> ConfigError:
        problem = f"type {entry.type} needs the plugin {name.partition('/')[0]!r}: {message}"
        return ConfigError(problem, where=entry.place, hint=f"pip install 'toolrl-plugin-verl[{extra}]'")

    built: Toolset = build_of_plugin("tools", name, options, context, entry.place, missing)
    return built
