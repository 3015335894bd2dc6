"""What the tests share: an isolation that works here, and a short way to call the tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext
from toolrl.types import ToolCall, ToolResult
from toolrl_plugin_python import paths
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.sandbox import Sandbox
from toolrl_plugin_python.tool import PythonToolset, build_python
from toolrl_testing import make_episode_context

Tell = Callable[[str], Awaitable[ToolResult]]


@pytest.fixture(scope="session", params=["namespaces", "landlock"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Each way of isolation that works here."""
    try:
        Sandbox.detect(request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture(scope="session")
def any_isolation() -> str:
    """The strongest that works here."""
    try:
        Sandbox.detect()
    except ConfigError as error:
        pytest.skip(str(error))
    return "auto"


@pytest.fixture(scope="session")
def sandbox(isolation: str) -> Sandbox:
    """One that shows the interpreter."""
    return Sandbox.detect(isolation, readable=[Path(path) for path in paths.interpreter_paths()])  # type: ignore[arg-type]


@pytest.fixture
def children() -> Iterator[None]:
    """The test leaves no child process behind, unreaped ones included; other tests' may be there."""

    def look() -> set[str]:
        found: set[str] = set()
        for path in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):  # A thread ended.
                found.update(path.read_text().split())
        return found

    before = look()
    yield
    assert look() <= before


@asynccontextmanager
async def open_episode(toolset: PythonToolset) -> AsyncIterator[Tell]:
    """Calls the tool with a code, in one episode."""
    context = make_episode_context()
    async with toolset.open(context.task, context) as session:
        yield lambda code: session.call(ToolCall("python", {"code": code}))


@pytest.fixture(scope="session")
def episode() -> Callable[[PythonToolset], AbstractAsyncContextManager[Tell]]:
    """`async with episode(toolset) as tell`: calls the tool with a code, in one episode."""
    return open_episode


async def in_episode(toolset: PythonToolset, codes: Sequence[str]) -> list[ToolResult]:
    """The results of these calls, one after another, in one episode."""
    async with open_episode(toolset) as tell:
        return [await tell(code) for code in codes]


async def with_tool(work: Callable[[PythonToolset], Awaitable[Any]], **options: Any) -> Any:
    """What `work` gives with a started toolset."""
    toolset = build_python(PythonOptions(**options), BuildContext(name="python"))
    try:
        await toolset.start()
        return await work(toolset)
    finally:
        await toolset.stop()


def run_cells(*codes: str, **options: Any) -> list[ToolResult]:
    """Start the tool, call it with each of these in one episode, stop it."""
    return list(asyncio.run(with_tool(lambda toolset: in_episode(toolset, codes), **options)))


@pytest.fixture(scope="session")
def cells(any_isolation: str) -> Callable[..., list[ToolResult]]:
    return run_cells


@pytest.fixture(scope="session")
def cells_of() -> Callable[..., list[ToolResult]]:
    """The same where no isolation may be had."""
    return run_cells


@pytest.fixture(scope="session")
def tool(any_isolation: str) -> Callable[..., Any]:
    """Runs an async function with a started toolset."""

    def run(work: Callable[[PythonToolset], Awaitable[Any]], **options: Any) -> Any:
        return asyncio.run(with_tool(work, **options))

    return run


@pytest.fixture
def descriptors() -> Callable[[], set[str]]:
    """The open descriptors of this process, as what they lead to."""

    def look() -> set[str]:
        found = set()
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found.add(f"{entry.name} {entry.readlink()}")
            except OSError:
                continue
        return found

    return look
