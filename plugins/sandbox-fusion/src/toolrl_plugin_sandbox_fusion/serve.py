"""The command `toolrl sandbox-fusion serve`, and its server: `POST /run_code` and `GET /v1/ping` of the API.

So many programs run at once, so many requests wait; one more is answered 503 with `Retry-After`, at once. A client that
leaves takes its program with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from toolrl.errors import ConfigError, PluginError
from toolrl.protocols import Command
from toolrl_common.http_server import HttpServer, RefusalError, is_loopback, serve_until_stopped
from toolrl_plugin_sandbox_fusion.api import RunRequest, problems
from toolrl_plugin_sandbox_fusion.languages import LANGUAGES

if TYPE_CHECKING:
    from toolrl_plugin_sandbox_fusion.runner import Bounds, ProgramRunner

EXTRA = "pip install 'toolrl-plugin-sandbox-fusion[server]'"


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


class Serve(Command):
    """A local sandbox: the API on top of the plugin `python`'s isolation."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        add = parser.add_argument
        add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        add("--port", type=_at_least(0), default=8080, help="port to listen on, 0 for any (default: %(default)s)")
        add(
            "--expose",
            action="store_true",
            help="allow a --host that other machines reach; anyone who connects can run code",
        )
        add("--workers", type=_at_least(1), metavar="N",
            help="programs that run at once (default: as many as there are processors)")  # fmt: skip
        add("--languages", metavar="NAME,…", type=_languages,
            help=f"languages to offer (default: those that work here of {', '.join(LANGUAGES)})")  # fmt: skip
        add("--python", default=sys.executable, metavar="PATH",
            help="interpreter of Python programs; its packages are theirs (default: this one)")  # fmt: skip
        add("--readable", action="append", type=Path, default=[], metavar="PATH",
            help="folder that programs may read, besides the system's; may be given several times")  # fmt: skip
        add("--isolation", default="auto", choices=("auto", "namespaces", "landlock", "none"),
            help="how programs are isolated; none protects nothing (default: the strongest that works)")  # fmt: skip
        add("--memory-mb", type=_at_least(16), default=4096, metavar="MB",
            help="the most memory of a program, and what one without a limit gets (default: %(default)s)")  # fmt: skip

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGINT or SIGTERM; the exit status."""
        if not args.expose and not is_loopback(args.host):
            raise ConfigError(
                f"--host {args.host} can be reached by other machines, and anyone who connects can run code",
                hint="Add --expose if that is wanted, behind a firewall; or listen on 127.0.0.1.",
            )
        server = make_server(args)
        return asyncio.run(serve_until_stopped(server, lambda: _announce(server)))


def make_server(args: argparse.Namespace) -> SandboxServer:
    """The server of the arguments. Raises PluginError where the plugin `python` is missing, ConfigError."""
    try:
        from toolrl_plugin_sandbox_fusion.runner import Bounds, ProgramRunner
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("toolrl_plugin_python"):
            raise
        raise PluginError("the server needs the plugin `python`, which isolates programs", hint=EXTRA) from error
    runner = ProgramRunner(
        args.isolation,
        python=args.python,
        languages=args.languages,
        readable=[path.absolute() for path in args.readable],
        bounds=Bounds(memory_mb=args.memory_mb),
    )
    return SandboxServer(runner, host=args.host, port=args.port, workers=args.workers or os.cpu_count() or 1)


def check() -> str:
    """For `toolrl doctor`: whether programs can be isolated here."""
    try:
        from toolrl_plugin_sandbox_fusion.runner import ProgramRunner
    except ModuleNotFoundError:
        return f"the client works; the local server needs {EXTRA}"
    runner = ProgramRunner(python=sys.executable, languages=["python"])
    return f"programs of the local server are isolated by {runner.describe()}"


def _announce(server: SandboxServer) -> None:
    print(f"serving on {server.url}/run_code", flush=True)
    print(f"languages: {', '.join(server.runner.languages)}", flush=True)
    for name, reason in server.runner.left_out.items():
        print(f"without {name}, which doesn't work in the sandbox: {reason}", flush=True)
    print(f"isolation: {server.runner.describe()}", flush=True)


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    number.__name__ = "number"
    return number


def _languages(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LANGUAGES:
            raise argparse.ArgumentTypeError(f"no language {name!r}; there are {', '.join(LANGUAGES)}")
    return names
