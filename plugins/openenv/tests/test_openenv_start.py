"""The start of a run: a server that is still starting, isn't there, or gives nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openenv_help import options
from openenv_wire_server import TOOLS, FakeEnv, FakeServer, error

from toolrl.errors import ToolsetError
from toolrl_plugin_openenv.toolset import build
from toolrl_testing import make_build_context

pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def test_a_run_waits_for_its_server() -> None:
    server = FakeServer()
    async with server.running():
        port = int(server.url.rpartition(":")[2])
    toolset = build(options(server.url), make_build_context("openenv"))
    starting = asyncio.create_task(toolset.start())
    await asyncio.sleep(0.3)
    async with server.running(port):
        await starting
        await toolset.stop()


async def test_a_server_that_isnt_there_fails_the_start() -> None:
    server = FakeServer()
    async with server.running():
        pass
    toolset = build(options(server.url, start_timeout=2.0), make_build_context("openenv"))
    with pytest.raises(ToolsetError, match=r"start_timeout.*at last: .*can't be reached: ConnectionRefused"):
        await toolset.start()
    await toolset.stop()


class PageServer(FakeServer):
    """Something else than an OpenEnv server."""

    def page(self, connection: Any, request: Any) -> Any:
        return connection.respond(404, "nothing here")


@pytest.mark.parametrize(
    ("kind", "said", "hint"),
    [
        ("page", "HTTP 404", "without `/ws`"),
        ("factory", "no GPU", "Its log says why"),
        ("slow", "gave no answer within 0.3 s", "connect_timeout"),
        ("full", "at capacity", "max_concurrent_envs"),
        ("hangs", r"\(start_timeout\)\n", "didn't come"),
    ],
)
async def test_a_start_that_fails_says_what_to_do(kind: str, said: str, hint: str) -> None:
    go = asyncio.Event()

    async def script(env: FakeEnv, message: dict[str, Any]) -> Any:
        if kind == "factory":
            return error("FACTORY_ERROR", "no GPU")
        if message["type"] == {"slow": "state", "hangs": "step"}[kind]:
            await go.wait()
        return None

    made = PageServer() if kind == "page" else FakeServer(tools=TOOLS, sessions=0 if kind == "full" else 9)
    async with made.running() as server:
        server.script = script
        given = options(server.url, start_timeout=1.5, connect_timeout=0.3 if kind == "slow" else 10, close_timeout=0.2)
        toolset = build(given, make_build_context("openenv"))
        try:
            with pytest.raises(ToolsetError, match=f"(?s){said}.*{hint}"):
                await toolset.start()
        finally:
            go.set()
            await toolset.stop()
