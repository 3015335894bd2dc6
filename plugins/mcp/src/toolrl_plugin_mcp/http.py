"""An HTTP client that reports trouble and bounds answers.

The SDK's transports swallow some trouble: a response whose stream breaks off, a POST that fails. The call would then
wait for its answer until its time limit. So the client that the SDK gets reports what it sees: a stream that broke, a
server that can't be reached, a server error. Its responses hold messages that fit (`messages.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx2

from toolrl_plugin_mcp.events import EventReader, fit_event, make_event
from toolrl_plugin_mcp.messages import LongMessage, MessageBuffer, fit_message, refusal
from toolrl_plugin_mcp.signals import LifeSignals, in_words

CONNECT_SECONDS = 10.0
READ_SECONDS = 3600.0
"""Without a byte on a stream. Few servers send something every now and then to keep one open, and how long a call may
take is the policy's to say."""
_BODY_HEADERS = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of a response that don't hold for its decoded, fitting body."""


class WatchedClient(httpx2.AsyncClient):
    """A client for the transports. It follows no redirect itself, so that no header goes to another host."""

    def __init__(self, headers: Mapping[str, str], signals: LifeSignals, *, sse: bool, max_bytes: int) -> None:
        """`sse`: for the transport SSE, else for streamable HTTP. `max_bytes`: of one message."""
        super().__init__(
            # A few compressed bytes may be a thousand times as many.
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx2.Timeout(30.0, connect=CONNECT_SECONDS, read=READ_SECONDS),
            follow_redirects=False,
        )
        self._signals = signals
        self._sse = sse
        self._max_bytes = max_bytes

    async def send(self, request: Any, **options: Any) -> Any:
        stream = options.pop("stream", False)
        try:
            response = await super().send(request, stream=True, **options)
        except httpx2.TransportError as error:
            self._trouble(request, f"{request.method} failed: {in_words(error)}")
            raise
        status = response.status_code
        if status >= 300:
            self._signals.refused(status)
        # Streamable HTTP: 404 is a session that the server has forgotten; other 4xx are answers to one request.
        if request.method == "POST" and (status >= 500 or status == 404 or (self._sse and status >= 400)):
            self._trouble(request, f"the server answered with HTTP {status}")
        response = self._fitting(request, response)
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response

    def _trouble(self, request: Any, reason: str) -> None:
        """With SSE a session is one stream and its POSTs, so the loss of either ends it. Streamable HTTP may go on."""
        if self._sse:
            self._signals.lost(reason)
        elif request.method != "DELETE":
            self._signals.doubt(reason)

    def _fitting(self, request: Any, response: Any) -> httpx2.Response:
        """The response with a body that fits."""
        chunks = self._bytes(request, response)
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = self._events(request, chunks) if events else self._body(request, chunks)
        made = httpx2.Response(
            response.status_code,
            headers=[pair for pair in response.headers.multi_items() if pair[0].lower() not in _BODY_HEADERS],
            stream=_Body(response, body),
            request=request,
            extensions=response.extensions,
        )
        made.next_request = response.next_request
        return made

    async def _bytes(self, request: Any, response: Any) -> AsyncGenerator[bytes]:
        """A response's bytes, decoded; reports how they ended."""
        try:
            async with aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (httpx2.TransportError, httpx2.DecodingError, OSError) as error:
            self._trouble(request, f"a response broke off: {in_words(error)}")
            raise
        if request.method == "GET" and self._sse:
            self._signals.lost("the server ended the event stream")

    async def _events(self, request: Any, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The events of a stream. The answer to a POST that is too long ends its stream: nothing follows it."""
        reader, limit = EventReader(self._max_bytes), self._max_bytes
        async with aclosing(chunks):
            async for chunk in chunks:
                for event in reader.read(chunk):
                    request_id = _id_of(request) if isinstance(event, LongMessage) else None
                    if fitting := await fit_event(event, limit, request_id):
                        yield fitting
                if request.method == "POST" and (long := reader.long) is not None and long.is_response:
                    yield make_event([], refusal(_id_of(request), limit))
                    return

    async def _body(self, request: Any, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """A body that is one message. What is left of a longer one isn't read."""
        buffer = MessageBuffer(self._max_bytes)
        async with aclosing(chunks):
            async for chunk in chunks:
                buffer.add(chunk)
                if buffer.long is not None:
                    break
        yield await fit_message(buffer.take(), self._max_bytes, _id_of(request))


class _Body(httpx2.AsyncByteStream):
    """The body of a response made of another's, which is closed with it."""

    def __init__(self, response: Any, chunks: AsyncGenerator[bytes]) -> None:
        self._response = response
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        try:
            with suppress(RuntimeError):  # It is being read.
                await self._chunks.aclose()
        finally:
            await self._response.aclose()


def _id_of(request: Any) -> int | str | None:
    """The id of the JSON-RPC request in a POST; None if there is none."""
    try:
        found = json.loads(request.content)["id"]
    except (ValueError, TypeError, KeyError, httpx2.RequestNotRead):
        return None
    return found if isinstance(found, int | str) else None
