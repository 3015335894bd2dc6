"""The transport SSE: a stream of events from the server, and a POST for each message to it.

The SDK's own reads no event of more than 1 MiB, and ends with a longer one. This one leaves the bound to its client.
Deprecated by MCP: https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2

from toolrl_plugin_mcp.messages import dump_message, parse_message
from toolrl_plugin_mcp.signals import LifeSignals, in_words

MOST_REDIRECTS = 5
_GET_HEADERS = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
_POST_HEADERS = {"Content-Type": "application/json"}


@asynccontextmanager
async def sse_streams(url: str, client: httpx2.AsyncClient, signals: LifeSignals) -> AsyncIterator[tuple[Any, Any]]:
    """Open the stream of events; it and `client` are closed when left. Raises httpx2.HTTPError."""
    to_session, read = anyio.create_memory_object_stream[Any](0)
    write, from_session = anyio.create_memory_object_stream[Any](0)
    async with client, to_session, read, write, from_session:
        response = await _send(client, client.build_request("GET", url, headers=_GET_HEADERS))
        try:
            response.raise_for_status()
            events = aiter(httpx2.EventSource(response, max_event_size=None))
            endpoint = await _endpoint(events, response.url)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_read_messages, events, to_session)
                tasks.start_soon(_write_messages, client, endpoint, from_session, signals)
                yield read, write
                tasks.cancel_scope.cancel()
        finally:
            await response.aclose()


async def _endpoint(events: AsyncIterator[httpx2.ServerSentEvent], url: httpx2.URL) -> httpx2.URL:
    """The address for messages, which the server's first event names. Raises httpx2.HTTPError."""
    async for event in events:
        if event.event == "endpoint":
            endpoint = httpx2.URL(urljoin(str(url), event.data))
            if _origin(endpoint) != _origin(url):
                raise httpx2.RemoteProtocolError(f"the server names an endpoint elsewhere, at {endpoint.host}")
            return endpoint
    raise httpx2.RemoteProtocolError("the server ended the event stream before it named an endpoint")


async def _read_messages(events: AsyncIterator[httpx2.ServerSentEvent], to_session: Any) -> None:
    """The messages of the server. The end of the stream, which the client reports, is the end of the session's."""
    with suppress(httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for event in events:
            if event.event == "message" and event.data:
                with suppress(ValueError):  # no message
                    await to_session.send(parse_message(event.data.encode()))
    to_session.close()


async def _write_messages(
    client: httpx2.AsyncClient, endpoint: httpx2.URL, from_session: Any, signals: LifeSignals
) -> None:
    async for message in from_session:
        request = client.build_request("POST", endpoint, content=dump_message(message), headers=_POST_HEADERS)
        try:
            response = await _send(client, request)
            await response.aclose()
            response.raise_for_status()
        except httpx2.HTTPError as error:
            signals.lost(f"POST failed: {in_words(error)}")
            break
    from_session.close()


async def _send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """The response; redirects are followed where they keep method and origin. Raises httpx2.TransportError."""
    response = await client.send(request, stream=True)
    for _ in range(MOST_REDIRECTS):
        following = response.next_request
        if following is None or following.method != request.method or _origin(following.url) != _origin(request.url):
            break
        await response.aclose()
        response = await client.send(following, stream=True)
    return response


def _origin(url: httpx2.URL) -> tuple[Any, ...]:
    return url.scheme, url.host, url.port, url.userinfo
