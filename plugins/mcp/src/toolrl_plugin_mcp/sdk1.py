"""A link over the `ClientSession` of mcp 1.x, with two faults of it mended.

A request of 1.x must not be cancelled: where its answer comes at the same moment, the session's loop ends with it, and
with the loop the whole session. And a request whose HTTP response ends without an answer is never answered. Both are
met in one way: the request gets an error as its answer, put among the messages that come from the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from toolrl_plugin_mcp.sdk import (
    BaseLink,
    Link,
    Signals,
    Streams,
    client_info,
    handler,
    mcp,
    mended,
    plain,
    session_message,
    types,
)

CANCEL_SECONDS = 2.0
"""How long telling a server of a cancelled call may take."""
RESUME_SECONDS = 5.0
"""How long an answer is waited for after the response ended that should have held it: the SDK may resume it."""
_CONNECTION_CLOSED = -32000
_MOST_WAITING = 1024
"""Messages that may wait for the session's loop."""


@asynccontextmanager
async def connect(streams: Streams, signals: Signals) -> AsyncIterator[Link]:
    """Shake hands over a transport."""
    more = {"message_handler": handler(signals), "client_info": client_info()}
    async with mended(streams, signals) as (read, write):
        messages, own_read = anyio.create_memory_object_stream[Any](_MOST_WAITING)
        relay = asyncio.create_task(_relay(read, messages))
        link: _Link1 | None = None
        try:
            async with mcp.ClientSession(own_read, write, **more) as session:
                result = await session.initialize()
                link = _Link1(session, str(result.protocolVersion), result.capabilities, messages)
                signals.ended = link.ended
                yield link
        finally:
            if link is not None:
                await link.drop()
            relay.cancel()
            await asyncio.wait([relay])
            messages.close()
            own_read.close()


def _look(task: asyncio.Task[Any]) -> None:
    """At its exception, so that asyncio doesn't complain of one that nobody waited for."""
    if not task.cancelled():
        task.exception()


async def _relay(read: Any, messages: Any) -> None:
    """What comes from the server, until its end."""
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for item in read:
            await messages.send(item)
    messages.close()


class _Link1(BaseLink):
    def __init__(self, session: Any, protocol: str, capabilities: Any, messages: Any) -> None:
        super().__init__(session, protocol, capabilities)
        self._messages = messages
        self._calls: dict[int, asyncio.Task[Any]] = {}
        """Requests under way by their numbers, those included that nobody waits for any more."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return plain(await self._request(lambda: self._session.call_tool(name, dict(arguments))))

    async def read_resource(self, uri: str) -> dict[str, Any]:
        from pydantic import AnyUrl

        return plain(await self._request(lambda: self._session.read_resource(AnyUrl(uri))))

    def ended(self, number: int) -> None:
        """The HTTP response to a request ended."""
        if number in self._calls:
            words = "SSE stream ended without a response"
            asyncio.get_running_loop().call_later(RESUME_SECONDS, self._answer, number, words)

    async def drop(self) -> None:
        """At the end: of requests that the session has left behind."""
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _request(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """A request's result. Cancelling it tells the server."""
        call = asyncio.create_task(self._numbered(make))
        call.add_done_callback(_look)
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            numbers = [number for number, task in self._calls.items() if task is call]
            if not numbers:
                call.cancel()  # It isn't sent yet.
            for number in numbers:
                self._answer(number, "the caller gave up")
                await self._tell_cancelled(number)
            raise
        return call.result()

    async def _numbered(self, make: Callable[[], Awaitable[Any]]) -> Any:
        # The number that the request is about to get: nothing else runs before it is taken.
        number: int = self._session._request_id
        task = asyncio.current_task()
        assert task is not None
        self._calls[number] = task
        try:
            return await make()
        finally:
            del self._calls[number]

    def _answer(self, number: int, words: str) -> None:
        """Answer a request with an error, if it is under way yet."""
        if number in self._calls:
            error = types.ErrorData(code=_CONNECTION_CLOSED, message=words)
            message = types.JSONRPCMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))
            with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._messages.send_nowait(session_message(message))

    def _page(self, method: str) -> Callable[[str | None], Any]:
        def page(cursor: str | None) -> Any:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            return self._request(lambda: getattr(self._session, method)(params=params))

        return page

    async def _tell_cancelled(self, number: int) -> None:
        notification = types.CancelledNotification(
            method="notifications/cancelled",
            params=types.CancelledNotificationParams(requestId=number, reason="the caller gave up"),
        )
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._session.send_notification(types.ClientNotification(notification))
