"""The local server: `POST /run_code` and `GET /v1/ping` of the Sandbox Fusion API.

So many programs run at once, so many requests wait; one more is answered 503 with `Retry-After`, at once. A client that
leaves takes its program with it. Only JSON is read: a browser can't be made to send it from another page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from toolrl.tools.http_server import HttpServer
from toolrl.tools.rate_limits import ConcurrencyLimit
from toolrl_plugin_sandbox_fusion.runner import Bounds, Runner, RunRequestBody

RETRY_AFTER_SECONDS = 1
_NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens, and what it takes."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 for any that is free."""
    workers: int = 4
    """Programs that run at once."""
    queue: int = 256
    """Requests that wait for a place; further ones are answered 503."""
    max_request_mb: int = 32
    request_seconds: float = 60.0
    """How long a request may take to come, its headers and its body each; it takes no place in the queue until it is
    there."""
    grace_seconds: float = 10.0
    """How long requests that are under way may go on after `stop`."""


class SandboxServer:
    """`async with SandboxServer(runner, settings) as server:` serves at `server.url`."""

    def __init__(self, runner: Runner, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self.runner = runner
        self._places = ConcurrencyLimit(self.settings.workers)
        self._under_way = 0
        app = web.Application(client_max_size=self.settings.max_request_mb << 20)
        app.router.add_post("/run_code", self._run_code)
        app.router.add_get("/v1/ping", self._ping)
        self._http = HttpServer(
            app, request_seconds=self.settings.request_seconds, grace_seconds=self.settings.grace_seconds
        )

    @property
    def url(self) -> str:
        """The address, once it listens."""
        return self._http.url

    async def __aenter__(self) -> SandboxServer:
        """Start the sandbox and listen. Raises ConfigError."""
        try:
            await self.runner.start()
            await self._http.start(self.settings.host, self.settings.port)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Take no more requests, let those that are under way end, then end what is left."""
        try:
            await self._http.stop()
        finally:
            await self.runner.stop()

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response("pong")

    async def _run_code(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return refusal(415, "the body has to be JSON, with the header Content-Type: application/json")
        if self._is_full():
            return _busy()
        try:
            raw = await self._http.read(request)
        except TimeoutError:
            return refusal(408, f"the request didn't come within {self.settings.request_seconds:g} s")
        except web.HTTPRequestEntityTooLarge:
            return refusal(413, f"the request is larger than {self.settings.max_request_mb} MiB")
        if self._is_full():
            return _busy()
        self._under_way += 1
        try:
            return await self._answer(raw)
        finally:
            self._under_way -= 1

    def _is_full(self) -> bool:
        return self._under_way >= self.settings.workers + self.settings.queue

    async def _answer(self, raw: bytes) -> web.Response:
        try:
            body = read_request(raw, self.runner.bounds)
        except RequestError as error:
            return refusal(422, error.problems)
        place = await self._places.acquire()
        try:
            response = await self.runner.run(body)
        finally:
            place.release()
        return web.json_response(response.body(), headers=_NO_STORE)


class RequestError(ValueError):
    """A request that can't be read; `problems` are those of the API's form."""

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__(str(problems))
        self.problems = problems


def read_request(raw: bytes, bounds: Bounds) -> RunRequestBody:
    """The request of a body. Raises RequestError."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError([{"loc": ["body"], "msg": f"JSON decode error: {error}", "type": "json_invalid"}]) from error
    try:
        body = RunRequestBody.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestError([{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]) from error
    too_long = [name for name in ("compile_timeout", "run_timeout") if getattr(body, name) > bounds.seconds]
    if too_long:
        message = f"Input should be less than or equal to {bounds.seconds:g}"
        raise RequestError([{"loc": ["body", name], "msg": message, "type": "less_than_equal"} for name in too_long])
    return body


def refusal(status: int, detail: Any, headers: dict[str, str] | None = None) -> web.Response:
    """An answer with the API's `detail`."""
    return web.json_response({"detail": detail}, status=status, headers={**_NO_STORE, **(headers or {})})


def _busy() -> web.Response:
    return refusal(503, "too many requests wait", {"Retry-After": str(RETRY_AFTER_SECONDS)})
