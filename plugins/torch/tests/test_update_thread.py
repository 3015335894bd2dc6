"""The thread of updates: work is never cut off, and a cancellation is kept for after it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from toolrl_plugin_torch.loop.training import UpdateThread


class Work:
    """Something that takes until it is released."""

    def __init__(self, error: Exception | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._released = threading.Event()
        self._error = error
        self.started = asyncio.Event()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.started.set)
        assert self._released.wait(60)
        if self._error is not None:
            raise self._error
        return "done"

    def release(self) -> None:
        self._released.set()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_waits_for_the_work(times: int) -> None:
    with UpdateThread() as thread:
        work = Work()
        task = asyncio.create_task(thread.run(work))
        await work.started.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        work.release()
        assert (await task) == ("done", True)
