"""The official SDK `mcp`, 1.x and 2.x, behind one small interface. What differs is here, in `sdk1` and in `sdk2`.

| | 1.x (from 1.24) | 2.x |
|---|---|---|
| session | `ClientSession`, handshake `initialize` | `Client`, `server/discover`, else `initialize` |
| HTTP library | httpx | httpx2 |
| field names in Python | as on the wire: `inputSchema` | snake case: `input_schema` |
| a cancelled call | isn't told to the server, and may break the session: mended in `sdk1` | told by the SDK |
| a response over HTTP without an answer | its call waits for ever: mended in `sdk1` | ended by the SDK |
| a changed list of tools | a notification | that, or the stream `subscriptions/listen` |

What a server says comes out as plain dicts, spelled as on the wire, so that nothing else depends on the SDK's classes.
A `Link` is entered and left in one task; its methods may be awaited in any.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import anyio

from toolrl_plugin_mcp.mending import mend_result

VERSION = importlib.metadata.version("mcp")
MAJOR = int(VERSION.partition(".")[0])
MAX_PAGES = 1000
"""Of a list, so that a server whose list never ends can't hold up a start."""
MAX_LIST_CHARS = 16 * 2**20
"""Of a list in all its pages, as JSON."""
MAX_ASKED = 256
"""Requests of a server to this client, such as pings, whose answers it hasn't read."""
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603

mcp: Any = importlib.import_module("mcp")
types: Any = importlib.import_module("mcp.types")
httpx: Any = importlib.import_module("httpx2" if MAJOR >= 2 else "httpx")
session_message: Any = importlib.import_module("mcp.shared.message").SessionMessage
_message_adapter: Any = importlib.import_module("mcp_types").jsonrpc_message_adapter if MAJOR >= 2 else None
ProtocolError: Any = mcp.MCPError if MAJOR >= 2 else mcp.McpError
"""What a request raises that the server answered with an error."""
Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""A transport: it gives the streams that the SDK reads messages from and writes messages to."""
_log = logging.getLogger(__name__)


class Signals(Protocol):
    """What a link tells of besides answers."""

    def lost(self, reason: str) -> None:
        """The connection is gone."""

    def doubt(self, reason: str) -> None:
        """The connection may be gone: better ask."""

    def tools_changed(self) -> None:
        """The list of tools isn't what it was."""

    def refused(self, status: int) -> None:
        """The server answered with this HTTP status, 400 or above."""

    ended: Callable[[int], None]
    """The response to this request ended, with its answer or without. Set by a link that wants to know."""


class Link(Protocol):
    """One connection whose handshake is done."""

    protocol: str
    """The version that both sides agreed on."""
    has_resources: bool

    async def list_tools(self) -> list[dict[str, Any]]:
        """All tools, page by page. Raises ProtocolError, or what a broken connection raises."""
        ...

    async def list_resources(self) -> list[dict[str, Any]]:
        """All resources and templates of resources. Raises as above."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A `CallToolResult`. Cancelling it tells the server. Raises as above, and ValueError for a result that is
        none."""
        ...

    async def read_resource(self, uri: str) -> dict[str, Any]:
        """A `ReadResourceResult`. Raises as above."""
        ...


def parse_message(line: bytes) -> Any:
    """A line of stdio as the SDK's message. Raises ValueError."""
    if MAJOR >= 2:
        return session_message(_message_adapter.validate_json(line, by_name=False))
    return session_message(types.JSONRPCMessage.model_validate_json(line))


def mended_message(line: bytes) -> Any:
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
        error = {"code": INTERNAL_ERROR, "message": "The server's answer can't be read: it is no response of JSON-RPC"}
        made = {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return parse_message(json.dumps(made).encode())


def dump_message(message: Any) -> bytes:
    """The SDK's message as a line of stdio, without its end."""
    kept = {"exclude_unset": True} if MAJOR >= 2 else {"exclude_none": True}
    text: str = message.message.model_dump_json(by_alias=True, **kept)
    return text.encode()


def error_of(error: Any) -> tuple[int, str]:
    """Code and message of a ProtocolError."""
    return error.error.code, error.error.message


@asynccontextmanager
async def http_streams(url: str, client: Any, *, sse: bool, max_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """The transport to a URL. It takes over `client`, an httpx AsyncClient, and closes it."""
    if sse:
        from mcp.client.sse import sse_client

        factory: Any = lambda **_: client  # noqa: E731
        async with sse_client(url, httpx_client_factory=factory) as streams:
            yield streams[0], streams[1]
        return
    from mcp.client.streamable_http import streamable_http_client

    more: dict[str, Any] = {}
    if _takes(streamable_http_client, "max_sse_event_size"):
        more["max_sse_event_size"] = max_bytes
    async with client, streamable_http_client(url, http_client=client, **more) as streams:
        yield streams[0], streams[1]


def _takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


class BaseLink:
    """What both versions have in common."""

    def __init__(self, session: Any, protocol: str, capabilities: Any) -> None:
        self._session = session
        self.protocol = protocol
        self.has_resources = getattr(capabilities, "resources", None) is not None

    async def list_tools(self) -> list[dict[str, Any]]:
        try:
            return await _all_pages(self._page("list_tools"), "tools")
        except ProtocolError as error:
            if error_of(error)[0] == METHOD_NOT_FOUND:
                return []
            raise

    async def list_resources(self) -> list[dict[str, Any]]:
        found = await _all_pages(self._page("list_resources"), "resources")
        try:
            return found + await _all_pages(self._page("list_resource_templates"), "resourceTemplates")
        except ProtocolError:  # Few servers have templates.
            return found

    def _page(self, method: str) -> Callable[[str | None], Any]:
        raise NotImplementedError


@asynccontextmanager
async def mended(streams: Streams, signals: Signals) -> AsyncIterator[tuple[Any, Any]]:
    """A transport whose messages are mended (`mending.py`), and whose server can't ask for more and more: the SDK keeps
    each request of the server until its answer is sent, and a server needn't read."""
    async with streams as (read, write):
        received = _MendedStream(read, signals)
        yield received, _AnsweredStream(write, received)


class _Stream:
    """A stream that passes everything on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _MendedStream(_Stream):
    """What comes from the server."""

    def __init__(self, stream: Any, signals: Signals) -> None:
        super().__init__(stream)
        self._signals = signals
        self.asked = 0
        """Requests without an answer."""

    def __aiter__(self) -> _MendedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        item = await self._stream.receive()
        message = _inner(item)
        if getattr(message, "method", None) == "notifications/cancelled":
            self.asked = max(self.asked - 1, 0)  # It gets no answer.
        elif hasattr(message, "method") and getattr(message, "id", None) is not None:
            self.asked += 1
        if self.asked > MAX_ASKED:
            self._signals.lost(f"it has asked {MAX_ASKED} things itself without reading an answer")
            raise anyio.EndOfStream
        mend_result(getattr(message, "result", None))
        return item


class _AnsweredStream(_Stream):
    """What goes to the server."""

    def __init__(self, stream: Any, received: _MendedStream) -> None:
        super().__init__(stream)
        self._received = received

    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        if not hasattr(_inner(item), "method"):
            self._received.asked = max(self._received.asked - 1, 0)


def _inner(item: Any) -> Any:
    """The request, notification or response in what the SDK hands to a transport."""
    message = getattr(item, "message", None)
    return getattr(message, "root", message)


def handler(signals: Signals) -> Callable[[Any], Any]:
    async def handle(message: Any) -> None:
        if isinstance(message, RuntimeError) and "unknown request ID" in str(message):
            pass  # An answer that came too late, in the words of 1.x.
        elif isinstance(message, Exception):
            signals.doubt(f"{type(message).__name__}: {message}")
        elif isinstance(getattr(message, "root", message), types.ToolListChangedNotification):
            signals.tools_changed()
        await anyio.lowlevel.checkpoint()

    return handle


def client_info() -> Any:
    return types.Implementation(name="toolrl", version=importlib.metadata.version("toolrl-plugin-mcp"))


async def _all_pages(page: Callable[[str | None], Any], key: str) -> list[dict[str, Any]]:
    """The items of a list that comes in pages."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    size = 0
    for _ in range(MAX_PAGES):
        result = plain(await page(cursor))
        items.extend(result.get(key) or ())
        size += len(json.dumps(result))
        if size > MAX_LIST_CHARS:
            raise RuntimeError(f"the list of {key} has more than {MAX_LIST_CHARS} characters")
        following = result.get("nextCursor")
        if not following or following == cursor:
            return items
        cursor = following
    raise RuntimeError(f"the list of {key} has more than {MAX_PAGES} pages")


def plain(result: Any) -> dict[str, Any]:
    """A result as on the wire."""
    plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain
