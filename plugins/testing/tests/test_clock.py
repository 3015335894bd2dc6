"""Time that passes by itself."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from toolrl_testing.clock import run_in_virtual_time


def test_waits_take_no_time_and_end_in_order() -> None:
    ended: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((name, asyncio.get_running_loop().time()))

    async def main() -> str:
        await asyncio.gather(wait("hour", 3600), wait("minute", 60), wait("now", 0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return "done"

    begin = time.perf_counter()
    assert run_in_virtual_time(main()) == "done"
    assert ended == [("now", 0.0), ("minute", 60.0), ("hour", 3600.0)]
    assert time.perf_counter() - begin < 600


def test_what_a_thread_sends_arrives_where_no_timer_stands() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(future.set_result, 5)).start()
        return await future

    assert run_in_virtual_time(main()) == 5


def test_waiting_for_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolrl_testing.clock._PATIENCE", 0.01)

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing happened for 0.01 s of real time, and no timer stands"):
        run_in_virtual_time(main())
