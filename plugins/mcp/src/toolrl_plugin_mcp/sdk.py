"""The official SDK `mcp` behind a small interface: one connection, its lists and its calls.

What a server says comes out as plain dicts, spelled as on the wire, so that nothing else depends on the SDK's classes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types as types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from toolrl_plugin_mcp.mending import mend_result
from toolrl_plugin_mcp.signals import LifeSignals

VERSION = importlib.metadata.version("mcp")

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""A transport: it gives the streams that the SDK reads messages from and writes messages to."""
_log = logging.getLogger(__name__)


def parse_message(line: bytes) -> SessionMessage:
    """A line of stdio as the SDK's message. Raises ValueError."""
    return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))


def mended_message(line: bytes) -> SessionMessage:
    """A line that `parse_message` refuses, as a message all the same: with its halves of surrogate pairs replaced (a
    server that cuts texts makes them), and an error for a response that is none. Raises ValueError."""
    text = (
        json.dumps(json.loads(line), ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
    try:
        return parse_message(text.encode())
    except ValueError:
        message = json.loads(text)
        if not isinstance(message, dict) or "method" in message or not isinstance(message.get("id"), int):
            raise
        said = "The server's answer can't be read: it is no response of JSON-RPC"
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=said)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=message["id"], error=error))


def dump_message(message: SessionMessage) -> bytes:
    """The SDK's message as a line of stdio, without its end."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()


@asynccontextmanager
async def http_streams(
    url: str, client: httpx2.AsyncClient, *, sse: bool, max_bytes: int
) -> AsyncIterator[tuple[Any, Any]]:
    """The transport to a URL. It takes over `client`, and closes it."""
    if sse:
        factory: Any = lambda **_: client  # noqa: E731
        async with sse_client(url, httpx_client_factory=factory) as streams:
            yield streams
        return
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=max_bytes) as streams:
        yield streams


@asynccontextmanager
async def connect(streams: Streams, signals: LifeSignals) -> AsyncIterator[Link]:
    """Shake hands over a transport. Entered and left by one task; the link's methods may be awaited in any."""
    info = types.Implementation(name="toolrl", version=importlib.metadata.version("toolrl-plugin-mcp"))
    async with mcp.Client(_mended(streams), cache=None, message_handler=_handler(signals), client_info=info) as client:
        listener: asyncio.Task[None] | None = None
        tools = client.server_capabilities.tools
        if client.session.discover_result is not None and tools is not None and tools.list_changed:
            listener = asyncio.create_task(_listen(client, signals))
        try:
            yield Link(client)
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.wait([listener])


class Link:
    """One connection whose handshake is done. Its methods raise MCPError for an error that the server answers with, and
    what a broken connection raises."""

    def __init__(self, client: mcp.Client) -> None:
        self._client = client
        self.has_resources = client.server_capabilities.resources is not None

    async def list_tools(self) -> list[dict[str, Any]]:
        """All tools, page by page."""
        try:
            return await _all_pages(lambda cursor: self._client.list_tools(cursor=cursor), "tools")
        except mcp.MCPError as error:
            if error.error.code == types.METHOD_NOT_FOUND:
                return []
            raise

    async def list_resources(self) -> list[dict[str, Any]]:
        """All resources and templates of resources."""
        client = self._client
        found = await _all_pages(lambda cursor: client.list_resources(cursor=cursor), "resources")
        try:
            templates = await _all_pages(
                lambda cursor: client.list_resource_templates(cursor=cursor), "resourceTemplates"
            )
        except mcp.MCPError:  # Few servers have templates.
            return found
        return found + templates

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A `CallToolResult`; raises ValueError for a result that is none. Cancelling it cancels the server's call."""
        return _plain(await self._client.call_tool(name, dict(arguments)))

    async def read_resource(self, uri: str) -> dict[str, Any]:
        """A `ReadResourceResult`."""
        return _plain(await self._client.read_resource(uri))


class _MendedMessages:
    """The SDK's messages of a transport, mended (`mending.py`)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _MendedMessages:
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._stream)
        # It may be an exception of the transport, too.
        mend_result(getattr(getattr(item, "message", None), "result", None))
        return item


@asynccontextmanager
async def _mended(streams: Streams) -> AsyncIterator[tuple[Any, Any]]:
    async with streams as (read, write):
        yield _MendedMessages(read), write


def _handler(signals: LifeSignals) -> Any:
    async def handle(message: Any) -> None:
        if isinstance(message, Exception):
            signals.doubt(f"{type(message).__name__}: {message}")
        elif isinstance(message, types.ToolListChangedNotification):
            signals.tools_changed()
        await anyio.lowlevel.checkpoint()

    return handle


async def _listen(client: mcp.Client, signals: LifeSignals) -> None:
    """Since protocol 2026-07-28 changes come on a stream of their own."""
    try:
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                signals.tools_changed()
    except Exception as error:  # noqa: BLE001 - changes are then not heard of; calls go on
        _log.debug("a server's changes aren't heard of any more: %s", error)


async def _all_pages(page: Callable[[str | None], Awaitable[Any]], key: str) -> list[dict[str, Any]]:
    """The items of a list that comes in pages. One that never ends is ended by its caller's time limit."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        result = _plain(await page(cursor))
        items.extend(result.get(key) or ())
        following = result.get("nextCursor")
        if not following or following == cursor:
            return items
        cursor = following


def _plain(result: Any) -> dict[str, Any]:
    """A result as on the wire."""
    plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain
