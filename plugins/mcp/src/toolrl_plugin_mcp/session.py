"""One episode: its tools, and with `session: episode` its servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from toolrl.errors import ArgumentsError, ToolError, ToolsetError
from toolrl.tools.threads import POOL
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec
from toolrl_plugin_mcp.catalog import McpCatalog
from toolrl_plugin_mcp.connection import ServerSetup
from toolrl_plugin_mcp.contents import has_images, read_result
from toolrl_plugin_mcp.server import Server, all_of

_JSON: TypeAdapter[Any] = TypeAdapter(Any)
"""Writes as the SDK does."""


class OwnServers:
    """The servers of one episode, each started when it is first called."""

    def __init__(self, make: Callable[[str], Server], places: asyncio.Semaphore) -> None:
        """`places` bounds how many start at once."""
        self.failure: ToolsetError | None = None
        """Why the last start failed."""
        self._make = make
        self._places = places
        self._starts: dict[str, asyncio.Task[Server]] = {}

    async def get(self, name: str) -> Server:
        """The server, once it is there. Raises ToolError where it doesn't start."""
        starting = self._starts.get(name)
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            starting = self._starts[name] = asyncio.create_task(self._started(name))
        try:
            return await asyncio.shield(starting)
        except ToolsetError as error:
            raise ToolError(f"The server of this tool didn't start: {error.message}") from error

    async def stop(self) -> None:
        """End them all, also those that are still starting."""
        for starting in self._starts.values():
            starting.cancel()
        servers = await asyncio.gather(*self._starts.values(), return_exceptions=True)
        await all_of([server.stop() for server in servers if isinstance(server, Server)])

    async def _started(self, name: str) -> Server:
        server = self._make(name)
        try:
            async with self._places:
                await server.start()
        except ToolsetError as error:
            self.failure = error
            raise
        self.failure = None
        return server


class McpSession:
    """The tools of one episode."""

    def __init__(
        self,
        catalog: McpCatalog,
        servers: Mapping[str, Server] | OwnServers,
        setups: Mapping[str, ServerSetup],
        images: bool,
    ) -> None:
        """`images`: the model gets images."""
        self._catalog = catalog
        self._specs = catalog.specs()
        self._servers = servers
        self._setups = setups
        self._images = images

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    def resolve(self, name: str) -> str | None:
        """The tool that another name means: a short one that only one server has, or the server's own spelling."""
        return self._catalog.resolve(name)

    def traits(self, name: str) -> ToolTraits:
        """What the policy may know of a tool; its breakers and limits are kept for its server."""
        entry = self._catalog.entries[name]
        setup = self._setups[entry.server]
        per_episode = setup.options.session == "episode"
        return ToolTraits(entry.pure, idempotent=entry.idempotent, endpoint=setup.endpoint, per_episode=per_episode)

    async def call(self, call: ToolCall) -> ToolResult:
        name = self._catalog.resolve(call.name)
        if name is None:
            raise ToolError(f"There is no tool {call.name!r}. Available tools: {', '.join(self._catalog.entries)}.")
        entry = self._catalog.entries[name]
        check_sendable(call.arguments)
        servers = self._servers
        server = await servers.get(entry.server) if isinstance(servers, OwnServers) else servers[entry.server]
        result = await server.ask(
            lambda link: link.call_tool(entry.tool, call.arguments), repeatable=entry.pure or entry.idempotent
        )
        setup, images = self._setups[entry.server], self._images

        def read() -> ToolResult:
            return read_result(result, images=images, hide=setup.hide)

        # Decoding images takes long: not on the event loop.
        return await POOL.submit(read) if images and has_images(result) else read()

    async def reward(self) -> float | None:
        """None. Raises ToolsetError where a server of the episode didn't start: no model should be trained on the
        answers of a server that doesn't."""
        if isinstance(self._servers, OwnServers) and self._servers.failure is not None:
            raise self._servers.failure
        return None


def check_sendable(arguments: Mapping[str, Any]) -> None:
    """Before the connection, which others use too, has to do with them. Raises ArgumentsError for arguments that JSON
    can't hold."""
    try:
        json.dumps(arguments, allow_nan=False)
        _JSON.dump_json({"params": {"arguments": arguments}})  # refuses halves of surrogate pairs, and what is too deep
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentsError(f"The arguments can't be sent as JSON: {error}.") from None
