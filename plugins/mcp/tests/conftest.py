"""Servers to test with, and a look at what a test leaves behind."""

from __future__ import annotations

import asyncio
import gc
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import ToolSession
from toolrl.types import ToolCall
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.toolset import McpToolset, build
from toolrl_testing import make_build_context, make_episode_context, make_task

SERVERS = Path(__file__).parent / "servers"
START_SECONDS = 300
LINUX = sys.platform.startswith("linux")


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # A thread ended.
            found += map(int, path.read_text().split())
    return [child for child in found if alive(child)]


def wait_until_gone(*pids: int, seconds: float = 15) -> None:
    """Until these processes have ended; fails where one hasn't."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if alive(pid)], "processes are left"


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def files_by_number() -> set[tuple[str, str]]:
    """The file descriptors of this process, each with what it is; those of objects that nobody holds left out."""
    gc.collect()
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of this listing is closed again
            found.add((path.name, str(path.readlink())))
    return found


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No process and no file of a test outlives it."""
    if not LINUX:
        yield
        return
    processes, files = set(children_of(os.getpid())), open_files()
    yield
    end = time.monotonic() + 30
    while (left := set(children_of(os.getpid())) - processes) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"processes are left: {left}"
    # pytest and the first use of some modules may open one or two.
    if open_files() > files + 3:
        gc.collect()
    assert open_files() <= files + 3, "files are left open"


class HttpServer:
    """A server over HTTP, the toy unless another is given, at one address that it keeps when it is started again."""

    def __init__(self, transport: str, program: Sequence[str] = (sys.executable, str(SERVERS / "toy.py"))) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command = [*program, transport, str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}/{'sse' if transport == 'sse' else 'mcp'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, anew where it runs."""
        self.kill()
        quiet = subprocess.DEVNULL
        environ = {**os.environ, "PORT": str(self.port)}
        self._process = subprocess.Popen(self._command, env=environ, stdin=quiet, stdout=quiet, stderr=quiet)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail("the server doesn't start")

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Rig:
    """Makes toolsets and calls their tools, each episode by itself."""

    raw = str(SERVERS / "raw.py")
    toy = str(SERVERS / "toy.py")
    http_server = HttpServer
    alive = staticmethod(alive)
    wait_until_gone = staticmethod(wait_until_gone)
    children_of = staticmethod(children_of)
    files_by_number = staticmethod(files_by_number)

    def options(self, *modes: str, server: Mapping[str, Any] | None = None, **more: Any) -> McpOptions:
        """Options of one server, the raw one in these modes unless another is given."""
        given = server or {"command": sys.executable, "args": [self.raw, *modes]}
        fast = {"first_delay": 0.05, "max_delay": 0.4, "probe_timeout": 60.0}
        more["restart"] = {**fast, **more.get("restart", {})}
        return McpOptions.model_validate({"servers": {"raw": given}, "start_timeout": START_SECONDS, **more})

    def toolset(self, options: McpOptions, **context: Any) -> McpToolset:
        return build(options, make_build_context("mcp", **context))

    @asynccontextmanager
    async def started(self, options: McpOptions, **context: Any) -> AsyncIterator[McpToolset]:
        """A toolset that is started, and stopped again; then no task of it is left."""
        before = asyncio.all_tasks()
        toolset = self.toolset(options, **context)
        await toolset.start()
        try:
            yield toolset
        finally:
            await toolset.stop()
        left = asyncio.all_tasks() - before
        assert not left, f"tasks are left: {left}"

    @asynccontextmanager
    async def episode(self, toolset: McpToolset, **fields: Any) -> AsyncIterator[ToolSession]:
        task = make_task(**fields)
        async with toolset.open(task, make_episode_context(task)) as session:
            yield session

    async def call(self, toolset: McpToolset, name: str, /, **arguments: Any) -> str:
        """One call in an episode of its own."""
        async with self.episode(toolset) as session:
            return (await session.call(ToolCall(name, arguments))).text


@pytest.fixture
def rig(nothing_is_left: None) -> Rig:
    return Rig()


@pytest.fixture(params=["stdio", "streamable-http", "sse"])
def toy(request: pytest.FixtureRequest, nothing_is_left: None) -> Iterator[tuple[dict[str, Any], HttpServer | None]]:
    """The toy server over each transport: its entry in a config, and where it is one the server behind the URL."""
    if request.param == "stdio":
        yield {"command": sys.executable, "args": [Rig.toy]}, None
        return
    server = HttpServer(request.param)
    server.start()
    try:
        yield {"url": server.url}, server
    finally:
        server.kill()


@contextmanager
def _answering(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that answers like this."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def answering() -> Callable[[type[http.server.BaseHTTPRequestHandler]], AbstractContextManager[str]]:
    """Starts an HTTP server that answers as a handler does."""
    return _answering
