"""Threads for synchronous tools: they grow, jobs queue, and what they raise comes back."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from toolrl.errors import ToolUnavailableError
from toolrl.tools.threads import Job, Lane, ThreadPool


async def started(job_of: Callable[[Callable[[], None]], Job[None]], leave: threading.Event) -> Job[None]:
    """A job that waits for `leave`, and has begun."""
    begun = threading.Event()

    def work() -> None:
        begun.set()
        leave.wait(30)

    job = job_of(work)
    await asyncio.to_thread(begun.wait, 30)
    return job


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.005)


async def test_values_exceptions_and_context_come_back() -> None:
    pool = ThreadPool()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")

    def fail(error: BaseException) -> None:
        raise error

    variable.set("inside")
    assert await pool.submit(variable.get) == "inside"
    assert await pool.submit(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError):
        await pool.submit(fail, KeyError("k"))
    with pytest.raises(SystemExit):
        await pool.submit(fail, SystemExit(3))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.submit(fail, StopIteration())


async def test_no_more_threads_than_the_limit_and_jobs_begin_in_order() -> None:
    pool = ThreadPool(limit=1)
    seen: list[int] = []
    assert len({await pool.submit(threading.get_ident) for _ in range(50)}) == 1
    await asyncio.gather(*(pool.submit(seen.append, number) for number in range(20)))
    assert seen == list(range(20))


async def test_a_job_that_was_cancelled_before_it_began_never_runs() -> None:
    pool, leave = ThreadPool(limit=1), threading.Event()
    ran: list[int] = []
    first = await started(pool.put, leave)
    second = pool.submit(ran.append, 2)
    second.cancel()
    leave.set()
    await first
    await pool.submit(ran.append, 3)
    assert ran == [3]


def test_a_thread_survives_the_end_of_its_loop() -> None:
    pool, leave = ThreadPool(), threading.Event()

    async def leave_early() -> None:
        (await started(pool.put, leave)).cancel()

    asyncio.run(leave_early())
    leave.set()

    async def again() -> int:
        return await pool.submit(lambda: 5)

    assert asyncio.run(again()) == 5


# Functions that don't return.


async def test_calls_that_never_return_do_not_use_the_pool_up() -> None:
    pool, leave = ThreadPool(limit=2), threading.Event()
    for _ in range(5):
        for job in [await started(pool.put, leave) for _ in range(2)]:
            job.cancel()
    assert pool.abandoned == 10
    hung = [await started(pool.put, leave) for _ in range(2)]
    waiting = pool.submit(lambda: "ran")
    hung[0].cancel()
    assert await asyncio.wait_for(waiting, 10) == "ran"
    leave.set()
    await until(lambda: pool.abandoned == 0)
    assert await pool.submit(lambda: 6) == 6


def test_an_exception_after_the_caller_left_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    pool, leave = ThreadPool(), threading.Event()

    def fail() -> None:
        leave.wait(30)
        raise OSError("late")

    async def main() -> None:
        job = pool.submit(fail)
        job.abandon()
        leave.set()
        await until(job.done)

    asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_hanging_call_does_not_hang_the_exit() -> None:
    script = """
import asyncio, time
from toolrl.tools.threads import POOL
async def main():
    job = POOL.submit(time.sleep, 600)
    await asyncio.sleep(0.1)
    job.cancel()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


async def test_so_many_abandoned_calls_of_one_tool_and_its_next_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    pool, leave = ThreadPool(), threading.Event()
    lane, other = Lane("search", pool, most_abandoned=3), Lane("fetch", pool, most_abandoned=3)
    for job in [await started(lane.call, leave) for _ in range(3)]:
        job.cancel()
    with pytest.raises(ToolUnavailableError, match="The tool 'search' can't be called now: 3 earlier calls"):
        lane.call(int)
    assert await other.call(lambda: 1) == 1
    assert await lane.submit(lambda: 2) == 2  # What was begun can be ended.
    leave.set()
    await until(lambda: lane.abandoned == 0)
    assert await lane.call(lambda: 3) == 3
    logged = [record.getMessage() for record in caplog.records]
    assert [text.partition(" of its calls")[0] for text in logged] == ["tool 'search': 1", "tool 'search': 3"]
