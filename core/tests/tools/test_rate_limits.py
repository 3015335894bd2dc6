"""Limits of concurrency and of rate: never more than allowed, first come first served, nothing lost to cancellation."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.tools.rate_limits import ConcurrencyLimit, RateLimit
from toolrl_testing.clock import run_in_virtual_time

pytestmark = pytest.mark.virtual_time


async def free(limit: ConcurrencyLimit) -> int:
    """Permits that can be had at once."""
    permits = []
    while (permit := limit.claim()) is not None:
        permits.append(permit)
    for permit in permits:
        permit.release()
    return len(permits)


async def test_no_more_permits_than_there_are_and_they_are_given_in_order() -> None:
    limit = ConcurrencyLimit(2)
    order: list[int] = []

    async def worker(number: int) -> None:
        permit = await limit.acquire()
        order.append(number)
        await asyncio.sleep(1)
        permit.release()
        permit.release()  # Twice is once.

    await asyncio.gather(*(worker(number) for number in range(7)))
    assert await free(limit) == 2
    assert asyncio.get_running_loop().time() == pytest.approx(4.0)
    assert order == list(range(7))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_cancellation_at_any_step_leaks_nothing(seed: int) -> None:
    chance = random.Random(seed)
    permits = chance.randint(1, 3)
    limit = ConcurrencyLimit(permits)
    inside = 0

    async def worker() -> None:
        nonlocal inside
        permit = await limit.acquire()
        inside += 1
        assert inside <= permits
        try:
            for _ in range(chance.randint(0, 4)):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            permit.release()

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        for _ in range(60):
            if chance.random() < 0.5:
                tasks.append(asyncio.create_task(worker()))
            elif tasks:
                chance.choice(tasks).cancel()
            if chance.random() < 0.7:
                await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [it for it in found if isinstance(it, AssertionError)]
        assert await free(limit) == permits

    asyncio.run(main())


async def test_a_rate_lets_a_burst_begin_and_then_so_many_a_second() -> None:
    limit = RateLimit(2.0, burst=3)
    begun: list[tuple[int, float]] = []
    clock = asyncio.get_running_loop().time

    async def worker(number: int) -> None:
        await limit.take()
        begun.append((number, clock()))

    await asyncio.gather(*(worker(number) for number in range(6)))
    await asyncio.sleep(60)  # The bucket fills, and no further than to its burst.
    await asyncio.gather(*(worker(number) for number in range(6, 11)))
    assert [number for number, _ in begun] == list(range(11))
    assert [round(at, 6) for _, at in begun] == [0, 0, 0, 0.5, 1, 1.5, 61.5, 61.5, 61.5, 62, 62.5]


@settings(max_examples=100, deadline=None)
@given(
    rate=st.floats(0.1, 50),
    burst=st.integers(1, 5),
    plans=st.lists(st.tuples(st.floats(0, 20), st.none() | st.floats(0, 20)), max_size=30),
)
def test_whatever_the_schedule_the_rate_is_kept_and_no_token_is_lost(rate: float, burst: int, plans: list[Any]) -> None:
    limit = RateLimit(rate, burst)
    begun: list[tuple[float, float]] = []

    async def worker(at: float) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(at)
        came = clock()
        await limit.take()
        begun.append((came, clock()))

    async def main() -> float:
        tasks = [asyncio.create_task(worker(at)) for at, _ in plans]
        loop = asyncio.get_running_loop()
        for task, (_, cancelled) in zip(tasks, plans, strict=True):
            if cancelled is not None:
                loop.call_later(cancelled, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(burst / rate)
        before = loop.time()
        for _ in range(burst):
            await limit.take()
        return loop.time() - before

    assert run_in_virtual_time(main()) == pytest.approx(0, abs=1e-6)  # The bucket is full again.
    begun.sort()
    times = [at for _, at in begun]
    assert times == sorted(times), "a caller was overtaken"
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + rate * (times[last] - start) + 1e-6
    if begun:
        assert begun[0][0] == begun[0][1]


async def test_a_lease_that_runs_out_gives_the_permit_back_unless_it_is_renewed() -> None:
    limit, clock = ConcurrencyLimit(1), asyncio.get_running_loop().time
    dead = await limit.acquire()
    dead.lease(10)
    alive = await limit.acquire()
    assert clock() == pytest.approx(10)
    for _ in range(5):
        alive.lease(10)
        await asyncio.sleep(8)
    assert limit.claim() is None
    alive.release()
    dead.release()
    dead.lease(10)  # Of no permit any more: nothing comes back twice.
    await asyncio.sleep(100)
    assert await free(limit) == 1
