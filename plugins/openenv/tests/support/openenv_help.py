"""What the tests of this plugin share."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.types import Turn
from toolrl_plugin_openenv.options import GymnasiumOptions, OpenEnvOptions
from toolrl_testing import make_build_context, make_episode_context, make_task

SERVERS = Path(__file__).parents[1] / "servers"
START_SECONDS = 300
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
HAS_OPENENV = importlib.util.find_spec("openenv") is not None and importlib.util.find_spec("fastmcp") is not None


class RealServer:
    """An OpenEnv server in a process, at one address that it keeps when it is started again."""

    def __init__(self, kind: str, sessions: int) -> None:
        self.command = [sys.executable, str(SERVERS / "envs.py"), kind]
        self.sessions = sessions
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        command = [*self.command, str(self.port), str(self.sessions)]
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                pytest.fail(f"the server ended with status {self._process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        pytest.fail("the server doesn't start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[int]:
    """The children of this process."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # A thread ended.
            found.update(map(int, path.read_text().split()))
    return found


def run(work: Callable[[], Coroutine[Any, Any, None]], seconds: float = 240) -> None:
    """To its end, which has to come some time."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(limited())


def options(url: str, **more: Any) -> OpenEnvOptions:
    """Options with short waits."""
    reconnect = {"attempts": 2, "first_delay": 0.01, **more.pop("reconnect", {})}
    return OpenEnvOptions.model_validate({"url": url, "reconnect": reconnect, **more})


@asynccontextmanager
async def box_of(given: OpenEnvOptions | GymnasiumOptions, *, policy: Mapping[str, Any] | None = None,
                 name: str = "openenv", **context: Any) -> AsyncIterator[ToolBox]:  # fmt: skip
    """A started tool box with one toolset; no task of it is left afterwards."""
    from toolrl_plugin_openenv import gym_toolset, toolset

    build: Any = toolset.build if isinstance(given, OpenEnvOptions) else gym_toolset.build
    made = build(given, make_build_context(name, **context))
    box = ToolBox([ToolEntry(name, made, policy=PolicyOptions(**policy or {}))])
    before = asyncio.all_tasks()
    await box.start()
    try:
        yield box
    finally:
        await box.stop()
    # A server on the same loop has tasks of its own, which end a little later.
    await until(lambda: not asyncio.all_tasks() - before)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until it holds; raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells when it holds
            await asyncio.sleep(0.01)


@asynccontextmanager
async def episode(box: ToolBox, number: int = 0, *, seed: int = 0, **fields: Any) -> AsyncIterator[ToolBoxSession]:
    """An episode of a task with these fields."""
    task = make_task(**fields)
    async with box.open(task, make_episode_context(task, episode_id=f"{task.id}#{number}", seed=seed)) as session:
        yield session


def turn(text: str) -> Turn:
    """A turn that says this."""
    return Turn(0, (), (), (), "stop", content=text)
