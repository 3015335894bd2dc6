"""Threads for synchronous tools: they grow, they queue, and what they raise comes back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from toolrl.tools.threads import ThreadPool


def test_values_and_exceptions_come_back() -> None:
    pool = ThreadPool()

    def fail(error: BaseException) -> None:
        raise error

    async def main() -> None:
        assert await pool.submit(divmod, 7, 2) == (3, 1)
        with pytest.raises(KeyError):
            await pool.submit(fail, KeyError("k"))
        with pytest.raises(SystemExit):
            await pool.submit(fail, SystemExit(3))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await pool.submit(fail, StopIteration())

    asyncio.run(main())


def test_no_more_threads_than_the_limit_and_jobs_run_in_order() -> None:
    pool = ThreadPool(limit=2)
    seen: list[int] = []
    names: set[str] = set()
    lock = threading.Lock()

    def job(number: int) -> None:
        with lock:
            seen.append(number)
            names.add(threading.current_thread().name)
        time.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(*(pool.submit(job, number) for number in range(20)))

    asyncio.run(main())
    assert len(names) == 2
    # Two threads: a job is at most one place away from its turn.
    assert all(abs(place - number) <= 1 for place, number in enumerate(seen))


def test_an_idle_thread_is_used_again() -> None:
    pool = ThreadPool()

    async def main() -> set[int]:
        return {await pool.submit(threading.get_ident) for _ in range(50)}

    assert len(asyncio.run(main())) == 1


def test_context_variables_are_seen() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    pool = ThreadPool()

    async def main() -> str:
        variable.set("inside")
        return await pool.submit(variable.get)

    assert asyncio.run(main()) == "inside"


def test_a_job_that_was_cancelled_before_it_began_never_runs() -> None:
    pool = ThreadPool(limit=1)
    gate = threading.Event()
    ran: list[int] = []

    async def main() -> None:
        first = pool.submit(gate.wait, 30)
        second = pool.submit(ran.append, 2)
        second.cancel()
        gate.set()
        await first
        await pool.submit(ran.append, 3)

    asyncio.run(main())
    assert ran == [3]


def test_a_thread_survives_the_end_of_its_loop() -> None:
    pool = ThreadPool()
    gate = threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.submit(gate.wait, 30), 0.01)

    asyncio.run(leave())
    gate.set()

    async def again() -> int:
        return await pool.submit(lambda: 5)

    assert asyncio.run(again()) == 5


def test_where_the_system_gives_no_more_threads_those_that_are_there_have_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPool()
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", start_one)
        jobs = [pool.submit(lambda number=number: number) for number in range(5)]
        assert await asyncio.gather(*jobs) == list(range(5))
        started.append(started[0])
        with pytest.raises(RuntimeError, match="new thread"):
            ThreadPool().submit(int)

    asyncio.run(main())
