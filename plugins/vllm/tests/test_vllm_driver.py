"""The thread around vLLM's engine, with a pretended engine: results, pauses, cancelled requests, failures, the end."""

from __future__ import annotations

import asyncio
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


def run(work: Any, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """`await work(driver)` on a driver that is started, and stopped afterwards."""
    engine, closed = Pretended(), []

    def add(engine: Pretended, name: str, prompt: list[int], params: Any, adapter: Any) -> None:
        if params is None:
            raise ValueError("too long")
        engine.left[name] = prompt[0]

    monkeypatch.setattr(build, "add", add)

    async def main() -> None:
        driver = Driver(lambda: engine, closed.append)
        await driver.start()
        try:
            await asyncio.wait_for(work(driver), 60)
        finally:
            await driver.stop()
        with pytest.raises(EngineError, match="the engine (was stopped|failed)"):
            await driver.call(lambda: None)

    asyncio.run(main())
    assert closed == [engine]
    return engine


def test_results_arrive_and_what_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        found = await asyncio.gather(*(driver.request([steps], dict) for steps in (3, 1, 2)))
        assert [output.request_id for output in found] == ["0", "1", "2"]
        with pytest.raises(EngineError, match="vLLM refuses a request: too long"):
            await driver.request([1], lambda: None)

    run(work, monkeypatch)


def test_a_hold_takes_no_step_but_for_what_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        async with driver.hold():
            waiting = asyncio.ensure_future(driver.request([1], dict))
            await driver.call(lambda: None)
            await driver.call(lambda: None)
            assert not waiting.done()
            await driver.request([1], dict, urgent=True)
        await waiting

    run(work, monkeypatch)


def test_a_cancelled_request_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        task = asyncio.ensure_future(driver.request([FOREVER], dict))
        while not await driver.call(lambda: dict(driver.engine.left)):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await driver.call(lambda: list(driver.engine.aborted)) == ["0"]

    run(work, monkeypatch)


def test_a_step_that_fails_fails_what_waits_and_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        waiting = asyncio.ensure_future(driver.request([FOREVER], dict))
        with pytest.raises(EngineError, match="vLLM failed: RuntimeError: a kernel that isn't there"):
            await driver.request([-1], dict)
        with pytest.raises(EngineError, match="vLLM failed"):
            await waiting
        with pytest.raises(EngineError, match="the engine failed: vLLM failed"):
            await driver.request([1], dict)

    run(work, monkeypatch)


def test_what_is_under_way_fails_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        waiting = asyncio.ensure_future(driver.request([FOREVER], dict))
        await driver.call(lambda: None)
        await driver.stop()
        with pytest.raises(EngineError, match="stopped while this was under way"):
            await waiting

    run(work, monkeypatch)
