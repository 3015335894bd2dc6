"""One server of the config: how it is reached, and its instances, between which calls are balanced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from toolrl.errors import ToolsetError, ToolUnavailableError, TransientToolError
from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_mcp.connection import McpConnection, NotRunError, ServerSetup
from toolrl_plugin_mcp.sdk import Link

T = TypeVar("T")
TRIES = 3
"""How often a call that wasn't taken on is made again."""


class Server:
    """All connections to one server: those that episodes share, or those of one episode."""

    def __init__(self, setup: ServerSetup, instances: int = 1) -> None:
        self.name = setup.name
        self._change = asyncio.Event()
        self._turn = 0
        labels = [f" ({number} of {instances})" for number in range(1, instances + 1)] if instances > 1 else [""]
        self.connections = [
            McpConnection(f"MCP server {self.name!r}{label}", setup, self._change.set) for label in labels
        ]

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """What it listed when it started."""
        return self.connections[0].tools

    async def start(self) -> None:
        """Open all connections; where one doesn't open, none stays open. Raises ToolsetError."""
        try:
            await all_of([connection.start() for connection in self.connections])
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close all connections."""
        await uninterrupted(asyncio.gather(*(connection.stop() for connection in self.connections)))

    def check(self) -> None:
        """Before an episode. Raises ToolsetError where nothing of the server is left, so that no model is trained on
        the answers of a server that is down."""
        if all(connection.down for connection in self.connections):
            raise ToolsetError(f"the MCP server {self.name!r} is down: {self.connections[0].reason}")

    async def ask(self, work: Callable[[Link], Coroutine[Any, Any, T]], *, repeatable: bool = True) -> T:
        """Do something with the connection that has the fewest calls under way, once there is one. `repeatable`: it may
        be repeated when its outcome is unknown. Raises ToolError."""
        for _ in range(TRIES):
            connection = await self._pick()
            try:
                return await connection.ask(work, repeatable=repeatable)
            except NotRunError:
                continue  # It was lost in between.
        raise TransientToolError("The server of this tool doesn't take the call on: its connection is lost each time.")

    async def _pick(self) -> McpConnection:
        """Waits while all of them restart; the call's time limit bounds that."""
        while True:
            ready = [connection for connection in self.connections if connection.usable]
            if ready:
                self._turn += 1
                # The turn breaks ties, so that not every single call goes to the first.
                start = self._turn % len(self.connections)
                order = [*self.connections[start:], *self.connections[:start]]
                return min((c for c in order if c in ready), key=lambda connection: connection.in_flight)
            if all(connection.down for connection in self.connections):
                reason = self.connections[0].reason or "it was stopped"
                raise ToolUnavailableError(f"The server of this tool is down: {reason}.")
            self._change.clear()
            await self._change.wait()


async def all_of(work: Sequence[Any]) -> None:
    """Await all at once. Where one raises or the wait is cancelled, the others are cancelled, and are over when this
    raises."""
    try:
        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(item)
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
