"""The toolset `qwen_agent`: tools of Qwen-Agent, as the rollout sees them.

    {use: qwen_agent, options: {tools: [storage, {name: "my_tools.py:Weather", unit: celsius}]}}

When the run starts, each tool is made once, for its spec and to find out whether it can be made. With `instances:
process` all episodes use that object; with `instances: episode` each has its own, and a scratch folder. A tool's code
runs in threads.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError, ToolrlError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.tools.cancellation import uninterrupted
from toolrl.tools.threads import POOL
from toolrl.types import Task
from toolrl_common.other_plugins import build_of_plugin
from toolrl_plugin_qwen_agent import library
from toolrl_plugin_qwen_agent.guards import is_builtin, settle
from toolrl_plugin_qwen_agent.options import QwenAgentOptions
from toolrl_plugin_qwen_agent.session import EpisodeTools, ToolKind, let_go
from toolrl_plugin_qwen_agent.specs import spec_of

_log = logging.getLogger(__name__)
FOLDER_SETTINGS = {"storage": "storage_root_path", "simple_doc_parser": "path", "doc_parser": "path",
                   "extract_doc_vocabulary": "path"}  # fmt: skip
"""Registered name to the setting of the tool's folder; of all others it is `work_dir`."""
INSTEAD = (
    "`code_interpreter` of toolrl-plugin-python runs code isolated without a container: {use: python/code_interpreter}."
)


@dataclass(frozen=True)
class Entry:
    """One entry of `tools`."""

    name: str
    settings: Mapping[str, Any]
    shown: str | None
    place: str


def build(options: QwenAgentOptions, context: BuildContext) -> Any:
    """The toolset with these options, and those of MCP servers. Imports and starts nothing. Raises ConfigError."""
    base = f"{context.where or context.name}.options.tools"
    entries: list[Entry] = []
    others: list[Toolset] = []
    for number, given in enumerate(options.entries):
        place = f"{base}[{number}]"
        if "mcpServers" in given:
            others.append(_mcp_toolset(given["mcpServers"], context, place))
        else:
            rest = {key: value for key, value in given.items() if key not in ("name", "as")}
            entries.append(Entry(given["name"], rest, given.get("as"), place))
    if not entries:
        return others
    library.require(context.where or None)
    images = options.images == "media" or (options.images == "auto" and context.processor is not None)
    return [QwenAgentToolset(entries, options, images=images), *others]


class QwenAgentToolset:
    """See the module's docstring."""

    def __init__(self, entries: Sequence[Entry], options: QwenAgentOptions, *, images: bool) -> None:
        self._entries = tuple(entries)
        self._options = options
        self._images = images
        self._kinds: dict[str, ToolKind] | None = None
        self._module: ModuleType | None = None
        self._base: Path | None = None
        self._shared: dict[str, Any] = {}
        self._number = itertools.count()
        self._gone = False

    def names(self) -> Sequence[str] | None:
        """What the model can call; None before the tools are known."""
        return tuple(self._kinds) if self._kinds is not None else None

    async def start(self) -> None:
        """Import the library and make each tool once. Raises ConfigError and ToolsetError; then nothing stays."""
        self._gone = False
        try:
            await POOL.submit(self._prepare)
        except BaseException:
            await self.stop()
            raise

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        """Objects of the tools that the task wants. Raises ToolsetError where one can't be made."""
        if self._kinds is None or self._base is None or self._module is None:
            raise ToolsetError("the toolset wasn't started", where="qwen_agent")
        folder = self._base / f"episode-{next(self._number)}"
        session = EpisodeTools(self._kinds, task, self._options, folder, images=self._images)
        try:
            await session.begin(self._shared)
            yield session
        finally:
            await uninterrupted(session.close())

    async def stop(self) -> None:
        """Let go of the tools and remove their folder."""
        self._gone = True
        shared, self._shared = self._shared, {}
        self._kinds, base, self._base = None, self._base, None
        await uninterrupted(POOL.submit(let_go, shared, base))

    def _prepare(self) -> None:
        """In a thread."""
        self._module = library.load()
        for name in self._options.imports:
            library.import_registering(name, "imports")
        if self._gone:  # The start was cancelled while the library was imported, and `stop` has already run.
            return
        self._base = Path(tempfile.mkdtemp(prefix="toolrl-qwen-agent-"))
        kinds: dict[str, ToolKind] = {}
        for entry in self._entries:
            kind, tool = self._kind(entry)
            if kind.spec.name in kinds:
                raise ConfigError(
                    f"two tools are called {kind.spec.name!r}", where=entry.place, hint="Rename one with `as`."
                )
            kinds[kind.spec.name] = kind
            if not self._options.per_episode:
                self._shared[kind.spec.name] = tool
        self._kinds = kinds

    def _kind(self, entry: Entry) -> tuple[ToolKind, Any]:
        assert self._module is not None
        assert self._base is not None
        cls = library.find_class(entry.name, self._module, entry.place)
        interpreter = sys.modules[self._module.CodeInterpreter.__module__]
        plain = is_builtin(cls, "CodeInterpreter") and not hasattr(interpreter, "_check_docker_availability")
        if (plain or is_builtin(cls, "PythonExecutor")) and not self._options.unisolated:  # plain: before 0.0.32
            raise ConfigError(
                f"{cls.__name__} runs the model's code on this machine, with the rights of the run",
                where=entry.place,
                hint="Use the tool `python` of toolrl-plugin-python, or set `unisolated: true`.",
            )
        own = cls.__module__.startswith("qwen_agent.")
        lack = library.missing(entry.name, dict(entry.settings)) if own else ""
        if lack:
            hint = library.NEEDS[entry.name].hint or "See the README of toolrl-plugin-qwen-agent for what it needs."
            raise ConfigError(f"the built-in tool {entry.name!r} lacks {lack}", where=entry.place, hint=hint)
        name = entry.shown or str(getattr(cls, "name", "")) or entry.name
        make = functools.partial(self._made, cls, entry, name)
        tool = make(self._base / "shared", {})
        try:
            spec = spec_of(tool, entry.shown)
        except ValueError as error:
            raise ConfigError(
                f"{entry.name!r} can't be used: {error}",
                where=entry.place,
                hint="Give it another name with `as`." if "tool name" in str(error) else None,
            ) from error
        if inspect.iscoroutinefunction(tool.call):
            raise ConfigError(f"{entry.name!r}: its call() is async; Qwen-Agent's aren't", where=entry.place)
        return ToolKind(make, spec, str(tool.name)), tool

    def _made(self, cls: Any, entry: Entry, name: str, folder: Path, settings: Mapping[str, Any]) -> Any:
        """A new object of a tool. Raises ToolsetError."""
        assert self._module is not None
        given = {"name": str(getattr(cls, "name", "")), **entry.settings, **settings}
        own = folder / name
        defaults = {"work_dir": str(own)}
        for registered, setting in FOLDER_SETTINGS.items():
            builtin = self._module.TOOL_REGISTRY.get(registered)
            if builtin is not None and issubclass(cls, builtin):
                defaults[setting] = str(own)
        own.mkdir(parents=True, exist_ok=True)
        try:
            tool = cls({**defaults, **given}) if inspect.signature(cls).parameters else cls()
        except ToolrlError:
            raise
        except Exception as error:
            raise ToolsetError(
                f"{cls.__name__} can't be made: {type(error).__name__}: {error}",
                where=entry.place,
                hint=INSTEAD if is_builtin(cls, "CodeInterpreter") else None,
            ) from error
        settle(tool, own, given)
        return tool


def _usual(server: Any, place: str) -> Any:
    """A server's entry as others than Qwen-Agent read it: there an address without `type` is one of SSE."""
    if not isinstance(server, Mapping):
        return server
    usual = dict(server)
    if "url" in usual:
        usual.setdefault("type", "sse")
    if usual.pop("sse_read_timeout", None) is not None:
        _log.warning("%s: sse_read_timeout isn't used; how long a call may take is `policy.timeout`", place)
    return usual


def _mcp_toolset(servers: Mapping[str, Any], context: BuildContext, place: str) -> Toolset:
    """The servers of an entry, by the plugin `mcp`. Raises ConfigError."""

    def missing(message: str) -> ConfigError:
        hint = "pip install 'toolrl-plugin-qwen-agent[mcp]'"
        return ConfigError(f"mcpServers needs the plugin 'mcp': {message}", where=place, hint=hint)

    options = {"servers": {name: _usual(servers[name], place) for name in servers}}
    built: Toolset = build_of_plugin("tools", "mcp/mcp", options, context, place, missing)
    return built
