"""The local server: `POST /run_code` and `GET /v1/ping` of the Sandbox Fusion API.

So many programs run at once, so many requests wait; one more is answered 503 with `Retry-After`, at once. A client that
leaves takes its program with it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolrl_common.http_server import HttpServer, RefusalError
from toolrl_plugin_sandbox_fusion.api import RunRequest, problems
from toolrl_plugin_sandbox_fusion.runner import Bounds, ProgramRunner

_REQUEST = TypeAdapter(RunRequest)


class SandboxServer(HttpServer):
    """`async with SandboxServer(runner, port=8080) as server:` serves at `server.url`."""

    def __init__(
        self,
        runner: ProgramRunner,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        workers: int = 4,
        queue: int = 256,
        max_request_mb: int = 32,
        grace_seconds: float = 10.0,
    ) -> None:
        """`port` 0 takes one that is free. `workers` programs run at once, `queue` requests wait for a place. A
        request takes one when its body is there; requests that are under way have `grace_seconds` when the server
        stops."""
        self.runner = runner
        self._places = asyncio.Semaphore(workers)
        self._most = workers + queue
        self._under_way = 0
        super().__init__(
            host,
            port,
            {("POST", "/run_code"): self._run_code, ("GET", "/v1/ping"): self._ping},
            service=runner,
            max_request_mb=max_request_mb,
            grace_seconds=grace_seconds,
        )

    async def _ping(self, request: Any) -> Any:
        return "pong"

    async def _run_code(self, request: Any) -> Any:
        self._check_queue()
        body = read_request(await self.read(request), self.runner.bounds)
        self._check_queue()
        self._under_way += 1
        try:
            async with self._places:
                return (await self.runner.run(body)).body()
        finally:
            self._under_way -= 1

    def _check_queue(self) -> None:
        if self._under_way >= self._most:
            raise RefusalError.busy("too many requests wait")


def read_request(raw: bytes, bounds: Bounds) -> RunRequest:
    """The request of a body. Raises RefusalError with the problems in the API's form."""
    try:
        request = _REQUEST.validate_python(json.loads(raw))
    except ValidationError as error:
        found = [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems(error)]
        raise RefusalError(422, found) from error
    except (ValueError, RecursionError) as error:
        problem = {"loc": ["body"], "msg": f"JSON decode error: {error}", "type": "json_invalid"}
        raise RefusalError(422, [problem]) from error
    too_long = [name for name in ("compile_timeout", "run_timeout") if getattr(request, name) > bounds.seconds]
    if too_long:
        message = f"Input should be less than or equal to {bounds.seconds:g}"
        raise RefusalError(
            422, [{"loc": ["body", name], "msg": message, "type": "less_than_equal"} for name in too_long]
        )
    return request
