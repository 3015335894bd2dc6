"""A local HTTP server: `HttpServer` listens for an `aiohttp.web.Application`.

Requests that a web page may have sent (a `Host` or an `Origin` of another site) are refused, and a request's body has
to come in time.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from toolrl.errors import ConfigError


class HttpServer:
    """`start` it, `stop` it on every path. A handler gets its request's body by `read`."""

    def __init__(self, app: Any, *, request_seconds: float, grace_seconds: float) -> None:
        """`app` is a `web.Application`. The body of a request may take `request_seconds`; requests that are under way
        have `grace_seconds` after `stop`."""
        from aiohttp import web  # type: ignore[import-not-found,unused-ignore]

        self._seconds = request_seconds
        self._own = True
        self._web = web
        app.middlewares.append(web.middleware(self._refuse_pages()))
        self._runner: Any = web.AppRunner(
            app, handle_signals=False, access_log=None, handler_cancellation=True, shutdown_timeout=grace_seconds
        )

    @property
    def url(self) -> str:
        """The address, once it listens."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ConfigError where the address can't be had."""
        self._own = is_loopback(host)
        await self._runner.setup()
        try:
            await self._web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"the server can't listen on {host}:{port}: {error.strerror or error}", hint="Choose another --port."
            ) from error

    async def stop(self) -> None:
        """Accept no more requests, and let those that are under way end."""
        await self._runner.cleanup()

    async def read(self, request: Any) -> bytes:
        """The body. Raises TimeoutError where it doesn't come in time, HTTPRequestEntityTooLarge."""
        async with asyncio.timeout(self._seconds):
            body: bytes = await request.read()
        return body

    def _refuse_pages(self) -> Any:
        async def refuse(request: Any, handler: Any) -> Any:
            problem = refused(request.headers.get("Host"), request.headers.get("Origin"), own=self._own)
            if problem is not None:
                return self._web.json_response({"detail": problem}, status=403)
            return await handler(request)

        return refuse


def refused(host: str | None, origin: str | None, *, own: bool) -> str | None:
    """Why a request with these headers isn't answered, or None. `own`: only this machine reaches the server, so another
    name in `Host` comes from a page whose name leads here."""
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
