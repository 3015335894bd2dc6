"""The toolset `mcp`: the tools of some MCP servers, as the rollout sees them.

    {use: mcp, options: {servers: {time: {command: python, args: [-m, mcp_server_time]}}}}

What servers list when the run starts is the catalog of the whole run. Shared servers belong to the toolset; with
`session: episode` each episode has its own, started by the first call of each server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.cancellation import uninterrupted
from toolrl.tools.threads import POOL
from toolrl.types import Task
from toolrl_common.http_client import without_secrets
from toolrl_plugin_mcp.catalog import McpCatalog, make_catalog
from toolrl_plugin_mcp.connection import ServerSetup
from toolrl_plugin_mcp.files import all_servers
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.sdk import VERSION
from toolrl_plugin_mcp.secrets import QuietLogs, Secrets
from toolrl_plugin_mcp.server import Server, all_of
from toolrl_plugin_mcp.server_options import ServerOptions
from toolrl_plugin_mcp.session import McpSession, OwnServers

STARTS_AT_ONCE = 16
"""Servers of episodes that start side by side: a hundred that start at once are all late."""


def build(options: McpOptions, context: BuildContext) -> McpToolset:
    """The toolset with these options. Reads the file that they name, and starts nothing. Raises ConfigError."""
    where = context.where or None
    return McpToolset(options, all_servers(options, where), context)


def check() -> str:
    """For `toolrl doctor`: the SDK can be imported, and which one it is."""
    return f"mcp {VERSION}"


class McpToolset:
    """See the module's docstring."""

    def __init__(self, options: McpOptions, servers: Mapping[str, ServerOptions], context: BuildContext) -> None:
        self._name = context.name
        self._options = options
        self._where = context.where or None
        secrets = Secrets(servers.values())
        self._logs = QuietLogs()
        self._images = context.processor is not None  # Then the model takes images.
        self._setups: dict[str, ServerSetup] = {}
        for name, given in servers.items():
            endpoint = without_secrets(given.url) if given.url else f"{context.where or context.name}.servers.{name}"
            self._setups[name] = ServerSetup(name, given, options, secrets.hide, context.restarted, endpoint)
        self._catalog: McpCatalog | None = None
        """None before `start` and after `stop`."""
        self._shared: dict[str, Server] = {}
        self._places = asyncio.Semaphore(options.max_sessions)
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)

    @property
    def servers(self) -> Mapping[str, Server]:
        """Those that all episodes share."""
        return self._shared

    def names(self) -> Sequence[str] | None:
        """What the model can call; None before the servers have said it."""
        return tuple(self._catalog.entries) if self._catalog is not None else None

    async def start(self) -> None:
        """Start every server and list its tools. With `session: episode` they end again, until an episode calls them.
        Raises ToolsetError and ConfigError; then nothing stays behind."""
        self._logs.install()
        self._shared = {name: Server(setup, self._options.instances) for name, setup in self._setups.items()}
        try:
            await all_of([server.start() for server in self._shared.values()])
            listed = {name: server.tools for name, server in self._shared.items()}
            # Checking schemas takes time.
            self._catalog = await POOL.submit(make_catalog, listed, self._options, self._where)
            if self._options.session == "episode":
                await self._stop_shared()
        except BaseException:
            await self.stop()
            raise

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        """The tools of one episode. Raises ToolsetError where a server that it may need is down."""
        if self._catalog is None:
            raise ToolsetError("the MCP servers weren't started", where=self._name)
        catalog = self._catalog
        if self._options.session == "shared":
            for name, entry in catalog.entries.items():
                if task.tools is None or name in task.tools:
                    self._shared[entry.server].check()
            yield McpSession(catalog, self._shared, self._setups, self._images)
            return
        async with self._places:
            own = OwnServers(lambda name: Server(self._setups[name]), self._starts)
            try:
                yield McpSession(catalog, own, self._setups, self._images)
            finally:
                await uninterrupted(own.stop())

    async def stop(self) -> None:
        """End every server."""
        try:
            await self._stop_shared()
        finally:
            self._catalog = None
            self._logs.remove()

    async def _stop_shared(self) -> None:
        servers, self._shared = self._shared, {}
        await uninterrupted(all_of([server.stop() for server in servers.values()]))
