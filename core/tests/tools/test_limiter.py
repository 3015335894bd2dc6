"""Limits of concurrency and of rate: never more than allowed, first come first served, nothing lost to cancellation."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.tools.rate_limits import NO_PERMIT, ConcurrencyLimit, LimitSpec, LocalLimiter, RateLimit
from toolrl_testing.clock import run_in_virtual_time


def test_no_more_permits_than_there_are_and_they_are_given_in_order() -> None:
    limit = ConcurrencyLimit(2)
    order: list[int] = []

    async def worker(number: int) -> None:
        permit = await limit.acquire()
        order.append(number)
        assert limit.permits - limit.free <= 2
        await asyncio.sleep(1)
        permit.release()
        permit.release()  # Twice is once.

    async def main() -> float:
        await asyncio.gather(*(worker(number) for number in range(7)))
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(4.0)
    assert order == list(range(7))
    assert (limit.free, limit.waiting) == (2, 0)


def test_nobody_overtakes_those_who_wait() -> None:
    limit = ConcurrencyLimit(1)
    order: list[str] = []

    async def main() -> None:
        first = await limit.acquire()

        async def late(name: str) -> None:
            permit = await limit.acquire()
            order.append(name)
            permit.release()

        waiting = asyncio.create_task(late("waited"))
        await asyncio.sleep(0)
        first.release()
        # The permit is handed over and not yet picked up: a newcomer finds none.
        newcomer = asyncio.create_task(late("newcomer"))
        await asyncio.gather(waiting, newcomer)

    asyncio.run(main())
    assert order == ["waited", "newcomer"]


def test_a_lease_that_runs_out_gives_the_permit_back_unless_it_is_renewed() -> None:
    async def main() -> None:
        limit, clock = ConcurrencyLimit(1), asyncio.get_running_loop().time
        dead = await limit.acquire()
        dead.lease(10)
        alive = await limit.acquire()
        assert (clock(), dead.held, alive.held) == (pytest.approx(10), False, True)
        for _ in range(5):
            alive.lease(10)
            await asyncio.sleep(8)
        assert alive.held
        alive.release()
        dead.release()
        dead.lease(10)  # Of no permit any more: nothing comes back twice.
        await asyncio.sleep(100)
        assert limit.free == 1

    run_in_virtual_time(main())


@settings(max_examples=200, deadline=None)
@given(
    permits=st.integers(1, 4),
    plans=st.lists(
        st.tuples(
            st.integers(0, 20),  # arrives
            st.integers(0, 6),  # holds
            st.none() | st.integers(0, 25),  # is cancelled
            st.none() | st.integers(1, 8),  # its lease
        ),
        max_size=25,
    ),
)
def test_whatever_the_schedule_permits_are_neither_lost_nor_made(permits: int, plans: list[Any]) -> None:
    limit = ConcurrencyLimit(permits)
    holders, most = 0, 0
    began: list[tuple[int, int, float]] = []
    arrival = itertools.count()

    async def worker(number: int, at: int, hold: int, lease: int | None) -> None:
        nonlocal holders, most
        await asyncio.sleep(at)
        ticket = next(arrival)
        permit = await limit.acquire()
        began.append((ticket, number, asyncio.get_running_loop().time()))
        holders += 1
        most = max(most, holders)
        try:
            if lease is not None:
                permit.lease(lease)
                await asyncio.sleep(min(hold, lease - 0.5))
            else:
                await asyncio.sleep(hold)
        finally:
            holders -= 1
            if lease is None:  # The others die with their permit.
                permit.release()

    async def cancel(task: asyncio.Task[None], at: int) -> None:
        await asyncio.sleep(at)
        task.cancel()

    async def main() -> None:
        tasks = [
            asyncio.create_task(worker(number, at, hold, lease)) for number, (at, hold, _, lease) in enumerate(plans)
        ]
        cancels = [cancel(task, plan[2]) for task, plan in zip(tasks, plans, strict=True) if plan[2] is not None]
        await asyncio.gather(*cancels)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(20)

    run_in_virtual_time(main())
    assert most <= permits
    assert limit.free == permits
    assert limit.waiting == 0
    # One whose turn came while he slept wakes a moment later than one who found a permit free: no time passes between.
    times = [at for _, _, at in sorted(began)]
    assert times == sorted(times), "somebody was overtaken"
    missing = {number for number, plan in enumerate(plans) if plan[2] is None} - {number for _, number, _ in began}
    assert not missing, "somebody was never served"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_cancellation_at_any_step_leaks_nothing(seed: int) -> None:
    chance = random.Random(seed)
    limit = ConcurrencyLimit(chance.randint(1, 3))

    async def worker() -> None:
        permit = await limit.acquire()
        try:
            for _ in range(chance.randint(0, 4)):
                await asyncio.sleep(0)
        finally:
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
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert (limit.free, limit.waiting) == (limit.permits, 0)


def test_a_rate_lets_a_burst_begin_and_then_so_many_a_second() -> None:
    limit = RateLimit(2.0, burst=3)
    begun: list[tuple[int, float]] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time

        async def worker(number: int) -> None:
            await limit.take()
            begun.append((number, clock()))

        await asyncio.gather(*(worker(number) for number in range(6)))
        await asyncio.sleep(60)  # The bucket fills, and no further than to its burst.
        await asyncio.gather(*(worker(number) for number in range(6, 11)))

    run_in_virtual_time(main())
    assert [number for number, _ in begun] == list(range(11))
    assert [round(at, 6) for _, at in begun] == [0, 0, 0, 0.5, 1, 1.5, 61.5, 61.5, 61.5, 62, 62.5]


@settings(max_examples=200, deadline=None)
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

    async def main() -> None:
        tasks = [asyncio.create_task(worker(at)) for at, _ in plans]
        loop = asyncio.get_running_loop()
        for task, (_, cancelled) in zip(tasks, plans, strict=True):
            if cancelled is not None:
                loop.call_later(cancelled, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)

    run_in_virtual_time(main())
    begun.sort()
    times = [at for _, at in begun]
    assert times == sorted(times), "somebody was overtaken"
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + rate * (times[last] - start) + 1e-6
    # Nobody waits while there is a token: who came to a bucket that was never taken from begins at once.
    if begun:
        assert begun[0][0] == begun[0][1]


@pytest.mark.parametrize("rate", [333.3, 12345.7])
@pytest.mark.parametrize("start", [1.1e5, 1e7 + 0.3])
def test_a_token_that_is_missing_by_less_than_the_clock_can_show(rate: float, start: float) -> None:
    async def main() -> float:
        await asyncio.sleep(start)
        limit, clock = RateLimit(rate), asyncio.get_running_loop().time
        for _ in range(2000):
            await limit.take()
        return clock() - start

    assert run_in_virtual_time(main()) == pytest.approx(1999 / rate, rel=0.1)


def test_both_limits_the_permit_first() -> None:
    limiter = LocalLimiter(LimitSpec(concurrency=1, per_second=1.0, burst=1))
    begun: list[float] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time

        async def worker() -> None:
            permit = await limiter.acquire()
            begun.append(clock())
            await asyncio.sleep(5)
            permit.release()

        await asyncio.gather(*(worker() for _ in range(3)))
        assert limiter.concurrency is not None
        assert limiter.concurrency.free == 1
        # Cancelled while it waits for a token, it gives its permit back.
        permit = await limiter.acquire()
        permit.release()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.1)
        assert limiter.concurrency.free == 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert limiter.concurrency.free == 1

    run_in_virtual_time(main())
    # Had the tokens been taken while they queued, the last two would have begun with none left for others.
    assert begun == pytest.approx([0, 5, 10])


def test_a_limiter_of_one_kind_has_only_that() -> None:
    async def main() -> None:
        rate_only = LocalLimiter(LimitSpec(per_second=5.0))
        permit = await rate_only.acquire()
        assert permit is NO_PERMIT
        permit.lease(1)
        permit.release()
        assert LocalLimiter(LimitSpec(concurrency=3)).rate is None

    run_in_virtual_time(main())


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="at least one permit, got 0"):
        ConcurrencyLimit(0)
    for rate in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"a finite rate above 0 and a burst of at least 1, got {rate} and 1"):
            RateLimit(rate)
