"""A local HTTP server with bounded connections: `HttpServer` listens for an `aiohttp.web.Application`.

Connections are bounded in number, and in the time that a request may take to come. Where there are as many as there
may be, one whose request hasn't come yet is closed for the next, the oldest first. A machine that is out of file
descriptors delays connections. Requests that a web page may have sent (a `Host` or an `Origin` of another site) are
refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

MOST_WAITING = 1000
"""Connections whose request hasn't come."""
IDLE_SECONDS = 90.0
"""Between two requests of a connection; aiohttp itself closes one that is silent for 75."""
_RETRY_SECONDS = 0.05


class HttpServer:
    """`start` it, `stop` it on every path. A handler gets its request's body by `read`."""

    def __init__(self, app: Any, *, request_seconds: float, grace_seconds: float) -> None:
        """`app` is a `web.Application`. Header and body of a request may each take `request_seconds`; what is under way
        has `grace_seconds` after `stop`."""
        from aiohttp import web  # type: ignore[import-not-found,unused-ignore]

        self._seconds = request_seconds
        self._waiting: dict[Any, tuple[Any, asyncio.TimerHandle]] = {}
        """Connections whose request hasn't come, the oldest first: transport, and what closes it."""
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._own = True
        self._refusal = web.json_response
        # `web.middleware` marks what it is given, and a bound method can't be marked.
        app.middlewares.append(web.middleware(partial(self._guard)))
        self._runner: Any = web.AppRunner(
            app, handle_signals=False, access_log=None, handler_cancellation=True, shutdown_timeout=grace_seconds
        )

    @property
    def url(self) -> str:
        """The address, once it listens."""
        host, port = self._sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._own = is_loopback(host)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(found):
            self._sockets.append(socket.create_server(address[:2], family=family))
            self._sockets[-1].setblocking(False)
        self._tasks = [asyncio.create_task(self._accept(listening)) for listening in self._sockets]

    async def stop(self) -> None:
        """Take no more requests, and let those that are under way end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        await self._runner.cleanup()
        for _, timer in self._waiting.values():
            timer.cancel()

    async def read(self, request: Any) -> bytes:
        """The body. Raises TimeoutError where it doesn't come in time, HTTPRequestEntityTooLarge."""
        async with asyncio.timeout(self._seconds):
            body: bytes = await request.read()
        self._arrived(request.protocol)
        return body

    async def _guard(self, request: Any, handler: Any) -> Any:
        problem = refused(request.headers.get("Host"), request.headers.get("Origin"), own=self._own)
        if problem is not None:
            return self._refusal({"detail": problem}, status=403)
        protocol, transport = request.protocol, request.transport
        self._wait(protocol, transport, self._seconds + 1)  # Within them `read` ends first.
        try:
            return await handler(request)
        finally:
            # After the answer was handed to the transport, which is in this step of the loop.
            asyncio.get_running_loop().call_soon(self._wait, protocol, transport, IDLE_SECONDS)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._forget_closed()
            if len(self._waiting) >= MOST_WAITING or self._takes_half_of_the_descriptors():
                await asyncio.sleep(0 if self._make_room() else _RETRY_SECONDS)
                continue
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError:  # Out of descriptors, or the other side is gone already.
                self._make_room()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                transport, protocol = await loop.connect_accepted_socket(self._runner.server, accepted)
            except OSError:
                accepted.close()
                continue
            self._wait(protocol, transport, self._seconds)

    def _wait(self, protocol: Any, transport: Any, seconds: float) -> None:
        self._arrived(protocol)
        if transport is None or transport.is_closing():
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._close, protocol)
        self._waiting[protocol] = transport, timer

    def _arrived(self, protocol: Any) -> None:
        if protocol in self._waiting:
            self._waiting.pop(protocol)[1].cancel()

    def _close(self, protocol: Any) -> None:
        transport, timer = self._waiting.pop(protocol)
        timer.cancel()
        transport.abort()

    def _takes_half_of_the_descriptors(self) -> bool:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return limit != resource.RLIM_INFINITY and len(self._runner.server.connections) >= max(4, limit // 2)

    def _make_room(self) -> bool:
        if self._waiting:
            self._close(next(iter(self._waiting)))
            return True
        return False

    def _forget_closed(self) -> None:
        for protocol in [one for one, (transport, _) in self._waiting.items() if transport.is_closing()]:
            self._arrived(protocol)


def refused(host: str | None, origin: str | None, *, own: bool) -> str | None:
    """Why a request with these headers isn't answered, or None. `own`: only this machine reaches the server, so that
    another name in `Host` is one that a page made lead here."""
    name = ""
    with suppress(ValueError):
        name = urlsplit(f"//{host or ''}").hostname or ""
    if host is not None and own and not is_loopback(name):
        return f"the Host {host[:100]!r} isn't this machine: use localhost or 127.0.0.1"
    if origin is not None and (origin != f"http://{host}" or not _is_address(name)):
        return f"requests from pages of {origin[:100]!r} aren't answered"
    return None


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
