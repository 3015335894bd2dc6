"""The local server: `POST /run_code` and `GET /v1/ping` of the Sandbox Fusion API.

So many programs run at once, so many requests wait; one more is answered 503 with `Retry-After`, at once. A client that
leaves takes its program with it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from toolrl_common.http_server import HttpServer, RefusalError
from toolrl_plugin_sandbox_fusion.runner import Bounds, ProgramRunner, RunRequestBody


@dataclass(frozen=True, slots=True)
class SandboxServerSettings:
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

    def __init__(self, runner: ProgramRunner, settings: SandboxServerSettings | None = None) -> None:
        self.settings = settings or SandboxServerSettings()
        self.runner = runner
        self._places = asyncio.Semaphore(self.settings.workers)
        self._under_way = 0
        self._http = HttpServer(
            {("POST", "/run_code"): self._run_code, ("GET", "/v1/ping"): self._ping},
            max_request_mb=self.settings.max_request_mb,
            request_seconds=self.settings.request_seconds,
            grace_seconds=self.settings.grace_seconds,
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

    async def _ping(self, request: Any) -> Any:
        return "pong"

    async def _run_code(self, request: Any) -> Any:
        self._check_queue()
        body = read_request(await self._http.read(request), self.runner.bounds)
        self._check_queue()
        self._under_way += 1
        try:
            async with self._places:
                return (await self.runner.run(body)).body()
        finally:
            self._under_way -= 1

    def _check_queue(self) -> None:
        if self._under_way >= self.settings.workers + self.settings.queue:
            raise RefusalError.busy("too many requests wait")


def read_request(raw: bytes, bounds: Bounds) -> RunRequestBody:
    """The request of a body. Raises RefusalError with the problems in the API's form."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RefusalError(
            422, [{"loc": ["body"], "msg": f"JSON decode error: {error}", "type": "json_invalid"}]
        ) from error
    try:
        body = RunRequestBody.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise RefusalError(422, [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]) from error
    too_long = [name for name in ("compile_timeout", "run_timeout") if getattr(body, name) > bounds.seconds]
    if too_long:
        message = f"Input should be less than or equal to {bounds.seconds:g}"
        raise RefusalError(
            422, [{"loc": ["body", name], "msg": message, "type": "less_than_equal"} for name in too_long]
        )
    return body
