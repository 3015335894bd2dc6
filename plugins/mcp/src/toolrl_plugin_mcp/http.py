"""An HTTP client that reports trouble.

The SDK's transports swallow some of it: a response whose stream breaks off, a POST that fails. The call would then wait
for its answer until its time limit. So the client that the SDK gets reports what it sees: a stream that broke, a server
that can't be reached, a server error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2

from toolrl_plugin_mcp.signals import LifeSignals, in_words

CONNECT_SECONDS = 10.0
READ_SECONDS = 3600.0
"""Without a byte on a stream. Few servers send something every now and then to keep one open, and how long a call may
take is the policy's to say."""


class WatchedClient(httpx2.AsyncClient):
    """A client for the SDK's transports. It follows no redirect itself, so that no header goes to another host."""

    def __init__(self, headers: Mapping[str, str], signals: LifeSignals, *, sse: bool) -> None:
        super().__init__(
            headers=headers,
            timeout=httpx2.Timeout(30.0, connect=CONNECT_SECONDS, read=READ_SECONDS),
            follow_redirects=False,
        )
        self._signals = signals
        self._sse = sse

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
        response.stream = _WatchedStream(response.stream, self._bytes(request, response.stream))
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

    async def _bytes(self, request: Any, stream: Any) -> AsyncIterator[bytes]:
        """A response's bytes; reports how they ended."""
        try:
            async for chunk in stream:
                yield chunk
        except (httpx2.TransportError, OSError) as error:
            self._trouble(request, f"a response broke off: {in_words(error)}")
            raise
        if request.method == "GET" and self._sse:
            self._signals.lost("the server ended the event stream")


class _WatchedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, watched: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._watched = watched

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._watched

    async def aclose(self) -> None:
        await self._stream.aclose()
