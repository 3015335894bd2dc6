"""The circuit breaker: closed, open, half-open."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from toolrl.errors import ConfigError, ToolError
from toolrl.tools import TransientToolError
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall

pytestmark = pytest.mark.virtual_time

POLICY = {"breaker": {"failures": 3, "window": 60, "reset": 30}, "timeout": 10}


class Server:
    """Answers as `mode` says."""

    def __init__(self, mode: str = "ok") -> None:
        self.mode = mode
        self.calls = 0

    async def __call__(self, call: ToolCall) -> str:
        self.calls += 1
        if self.mode == "ok":
            return "ok"
        if self.mode == "hang":
            await asyncio.sleep(3600)
        raise {
            "crash": ConnectionError("refused"),
            "transient": TransientToolError("busy"),
            "refuses": ToolError("no such page"),
        }[self.mode]


@pytest.mark.parametrize("mode", ["crash", "transient", "hang"])
async def test_it_opens_after_failures_in_a_row_and_closes_after_a_probe(
    scene: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(mode)
    tool = scene(server, POLICY)
    with caplog.at_level(logging.INFO, "toolrl"):
        for _ in range(3):
            assert (await tool.ask()).result.error != "unavailable"
        record = await tool.ask()
        assert record.result.error == "unavailable"
        assert record.result.text.startswith("The tool 'search' doesn't work now: its last calls failed. Go on without")
        assert server.calls == 3
        await asyncio.sleep(31)
        assert (await tool.ask()).result.error != "unavailable"  # The probe, which fails.
        assert (await tool.ask()).result.error == "unavailable"
        assert server.calls == 4
        await asyncio.sleep(31)
        server.mode = "ok"
        assert (await tool.ask()).result.text == "ok"
        assert (await tool.ask()).result.text == "ok"
    said = [record.getMessage() for record in caplog.records if "circuit breaker" in record.getMessage()]
    assert said[0] == (
        "endpoint 'engine' fails: its circuit breaker is open; its calls are answered `unavailable` for 30 s"
    )
    assert "endpoint 'engine' answers again" in said[-1]


async def test_half_open_lets_one_call_through(scene: Any) -> None:
    server = Server("hang")
    tool = scene(server, POLICY)
    await asyncio.gather(*(tool.ask() for _ in range(3)))
    await asyncio.sleep(31)
    records = await asyncio.gather(*(tool.ask() for _ in range(5)))
    assert sorted(str(record.result.error) for record in records) == ["timeout"] + ["unavailable"] * 4
    assert server.calls == 4


async def test_a_cancelled_probe_leaves_the_place_to_the_next(scene: Any) -> None:
    server = Server("hang")
    tool = scene(server, POLICY)
    await asyncio.gather(*(tool.ask() for _ in range(3)))
    await asyncio.sleep(31)
    probe = asyncio.create_task(tool.ask())
    await asyncio.sleep(1)
    assert (await tool.ask()).result.error == "unavailable"
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    server.mode = "ok"
    assert (await tool.ask()).result.text == "ok"


async def test_an_endpoint_that_answers_works_whatever_it_says(scene: Any) -> None:
    server = Server("refuses")
    tool = scene(server, POLICY)
    for mode in ["crash", "crash", "refuses", "crash", "crash", "ok", "crash", "crash", "refuses"]:
        server.mode = mode
        assert (await tool.ask()).result.error != "unavailable"


def test_tools_of_one_endpoint_share_it_and_others_do_not(scene: Any, virtual: Any) -> None:
    endpoints = Endpoints()

    def tool(entry: str, endpoint: str | None, server: Server) -> Any:
        return scene(server, POLICY, entry=entry, traits=ToolTraits(endpoint=endpoint), endpoints=endpoints)

    down, up = Server("crash"), Server("ok")
    first, second, third = tool("a", "http://x", down), tool("b", "http://x", up), tool("c", "http://y", up)

    async def main() -> list[Any]:
        for _ in range(3):
            await first.ask()
        return [(await it.ask()).result.error for it in (first, second, third)]

    assert virtual(main()) == ["unavailable", "unavailable", None]
    other = scene(up, {"breaker": {"failures": 9}}, traits=ToolTraits(endpoint="http://x"), endpoints=endpoints)
    with pytest.raises(ConfigError, match=r"'http://x' has a breaker with failures 3, window 60, reset 30.*failures 9"):
        virtual(other.ask())
