"""A local HTTP server of JSON: `HttpServer` calls a handler for each route.

    async def add(request):
        numbers = json.loads(await server.read(request))
        return {"sum": sum(numbers)}

    async with HttpServer("127.0.0.1", 8000, {("POST", "/add"): add}, max_request_mb=1, grace_seconds=10) as server:
        print(server.url)

Requests that a web page may have sent (a `Host` or an `Origin` of another site, a body that isn't JSON) are refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from toolrl.errors import ConfigError

Handler = Callable[[Any], Awaitable[Any]]
"""From a request to what is answered as JSON."""
_NO_STORE = {"Cache-Control": "no-store"}
REQUEST_SECONDS = 30.0
"""Time limit for a client to send the headers of its next request, and the same again for a body."""


class RefusalError(Exception):
    """A handler raises it to refuse a request: `status` with `detail` as JSON."""

    def __init__(self, status: int, detail: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}: {detail}")
        self.status = status
        self.detail = detail
        self.headers = {**_NO_STORE, **(headers or {})}

    @classmethod
    def busy(cls, detail: str) -> RefusalError:
        """Too many requests wait: ask again in a second."""
        return cls(503, detail, {"Retry-After": "1"})


class Service(Protocol):
    """What a server's handlers work with."""

    async def start(self) -> None:
        """Get ready. Raises ConfigError."""

    async def stop(self) -> None:
        """End what is left."""


class HttpServer:
    """Listens inside `async with`. A handler gets its request's body by `read`."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[tuple[str, str], Handler],
        *,
        service: Service | None = None,
        max_request_mb: int,
        grace_seconds: float,
    ) -> None:
        """`port` 0 takes one that is free. `routes`: by method and path. `service` is started before the server listens
        and stopped after it. Requests that are under way have `grace_seconds` when the server stops."""
        from aiohttp import web  # type: ignore[import-not-found,unused-ignore]

        self._web = web
        self._host, self._port = host, port
        self._service = service
        self._max_mb = max_request_mb
        app = web.Application(client_max_size=max_request_mb << 20)
        for (method, path), handler in routes.items():
            app.router.add_route(method, path, self._answering(handler))
        self._runner: Any = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=grace_seconds,
            keepalive_timeout=REQUEST_SECONDS,
        )

    @property
    def url(self) -> str:
        """The address, once it listens."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def __aenter__(self) -> Self:
        """Start the service and listen. Raises ConfigError."""
        try:
            if self._service is not None:
                await self._service.start()
            await self._runner.setup()
            await self._listen()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Accept no more requests, let those that are under way end, then stop the service."""
        try:
            await self._runner.cleanup()
        finally:
            if self._service is not None:
                await self._service.stop()

    async def _listen(self) -> None:
        try:
            await self._web.TCPSite(self._runner, self._host or None, self._port).start()
        except OSError as error:
            raise ConfigError(
                f"the server can't listen on {self._host}:{self._port}: {error.strerror or error}",
                hint="Choose another --port.",
            ) from error

    async def read(self, request: Any) -> bytes:
        """The body of a request, which says that it is JSON. Raises RefusalError."""
        if request.content_type != "application/json":
            raise RefusalError(415, "the body has to be JSON, with the header Content-Type: application/json")
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return bytes(await request.read())
        except TimeoutError:
            raise RefusalError(408, f"the body did not arrive within {REQUEST_SECONDS:.0f} s") from None
        except self._web.HTTPRequestEntityTooLarge:
            raise RefusalError(413, f"the request is larger than {self._max_mb} MiB") from None

    def _answering(self, handler: Handler) -> Handler:
        async def answer(request: Any) -> Any:
            problem = refused(request.headers.get("Host"), request.headers.get("Origin"), own=is_loopback(self._host))
            try:
                if problem is not None:
                    raise RefusalError(403, problem)
                return self._web.json_response(await handler(request), headers=_NO_STORE)
            except RefusalError as error:
                return self._web.json_response({"detail": error.detail}, status=error.status, headers=error.headers)

        return answer


async def serve_until_stopped(server: HttpServer, announce: Callable[[], None]) -> int:
    """Serve until SIGINT or SIGTERM; `announce` prints what a user needs to know. The exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        announce()
        await stop.wait()
        print("stopping", flush=True)
    return 0


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
