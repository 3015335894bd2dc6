"""The thread around vLLM's engine, with a pretended engine: results, pauses, cancelled requests, failures, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import EngineError
from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.driver import Driver

FOREVER = 1 << 60


class Pretended:
    """Ends a request after as many steps as its prompt says; one of −1 fails the step."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.aborted: list[str] = []
        self.engine_core = None

    def step(self) -> list[Any]:
        if -1 in self.left.values():
            raise RuntimeError("a kernel that isn't there")
        self.left = {name: steps - 1 for name, steps in self.left.items()}
        done = [name for name, steps in self.left.items() if steps == 0]
        for name in done:
            del self.left[name]
        return [SimpleNamespace(request_id=name, finished=True) for name in done]

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            del self.left[name]


@pytest.fixture
def driving(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`async with driving() as driver:`"""

    def add(engine: Pretended, name: str, prompt: list[int], params: Any) -> None:
        if params is None:
            raise ValueError("too long")
        engine.left[name] = prompt[0]

    monkeypatch.setattr(build, "add", add)

    @asynccontextmanager
    async def drive() -> AsyncIterator[Driver]:
        engine, closed = Pretended(), []
        driver = Driver(lambda: engine, closed.append)
        await driver.start()
        try:
            async with asyncio.timeout(60):
                yield driver
        finally:
            await driver.stop()
        with pytest.raises(EngineError, match="the engine (was stopped|failed)"):
            await driver.call(lambda: None)
        assert closed == [engine]

    return drive


async def test_results_arrive_and_what_is_refused_is_told(driving: Any) -> None:
    async with driving() as driver:
        found = await asyncio.gather(*(driver.request([steps], dict) for steps in (3, 1, 2)))
        assert [output.request_id for output in found] == ["0", "1", "2"]
        with pytest.raises(EngineError, match="vLLM refuses a request: too long"):
            await driver.request([1], lambda: None)


async def test_a_hold_takes_no_step_but_for_what_is_urgent(driving: Any) -> None:
    async with driving() as driver:
        async with driver.hold():
            waiting = asyncio.ensure_future(driver.request([1], dict))
            await driver.call(lambda: None)
            await driver.call(lambda: None)
            assert not waiting.done()
            await driver.request([1], dict, urgent=True)
        await waiting


async def test_a_cancelled_request_is_aborted(driving: Any) -> None:
    async with driving() as driver:
        task = asyncio.ensure_future(driver.request([FOREVER], dict))
        while not await driver.call(lambda: dict(driver.engine.left)):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await driver.call(lambda: list(driver.engine.aborted)) == ["0"]


async def test_a_step_that_fails_fails_what_waits_and_what_comes(driving: Any) -> None:
    async with driving() as driver:
        waiting = asyncio.ensure_future(driver.request([FOREVER], dict))
        with pytest.raises(EngineError, match="vLLM failed: RuntimeError: a kernel that isn't there"):
            await driver.request([-1], dict)
        with pytest.raises(EngineError, match="vLLM failed"):
            await waiting
        with pytest.raises(EngineError, match="the engine failed: vLLM failed"):
            await driver.request([1], dict)


async def test_what_is_under_way_fails_when_it_is_stopped(driving: Any) -> None:
    async with driving() as driver:
        waiting = asyncio.ensure_future(driver.request([FOREVER], dict))
        await driver.call(lambda: None)
        await driver.stop()
        with pytest.raises(EngineError, match="stopped while this was under way"):
            await waiting
