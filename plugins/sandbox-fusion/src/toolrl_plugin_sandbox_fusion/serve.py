"""The command `toolrl sandbox-fusion serve`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.errors import ConfigError, PluginError
from toolrl.protocols import Command
from toolrl_common.http_server import is_loopback, serve_until_stopped
from toolrl_plugin_sandbox_fusion.languages import LANGUAGES

if TYPE_CHECKING:
    from toolrl_plugin_sandbox_fusion.server import SandboxServer

EXTRA = "pip install 'toolrl-plugin-sandbox-fusion[server]'"


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
        add("--max-timeout", type=_at_least(1), default=300, metavar="SECONDS",
            help="the most that a request may ask for, to compile and to run each (default: %(default)s)")  # fmt: skip
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
    from toolrl_plugin_sandbox_fusion.server import SandboxServer

    runner = ProgramRunner(
        args.isolation,
        python=args.python,
        languages=args.languages,
        readable=[path.absolute() for path in args.readable],
        bounds=Bounds(seconds=args.max_timeout, memory_mb=args.memory_mb),
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
