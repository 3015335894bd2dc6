"""Turns are given in order, to one at a time, whatever is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.rollout.one_at_a_time import OneAtATime, StuckError


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 3))
def test_one_at_a_time_in_order_without_those_that_were_cancelled(cancelled: list[bool], steps: int) -> None:
    order: list[int] = []
    inside = 0

    async def use(turns: OneAtATime, number: int) -> None:
        nonlocal inside
        await turns.begin()
        try:
            inside += 1
            assert inside == 1
            order.append(number)
            for _ in range(steps):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            turns.end()

    async def all_of_them() -> None:
        turns = OneAtATime()
        await turns.begin()
        tasks = [asyncio.create_task(use(turns, number)) for number in range(len(cancelled))]
        await asyncio.sleep(0)
        for task, stop in zip(tasks, cancelled, strict=True):
            if stop:
                task.cancel()
        turns.end()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(turns.begin(), 60)  # Nobody kept it.

    asyncio.run(all_of_them())
    assert order == [number for number, stop in enumerate(cancelled) if not stop]


def test_a_cancellation_that_comes_with_the_turn_hands_it_on() -> None:
    async def two() -> None:
        turns = OneAtATime()
        await turns.begin()
        first, second = (asyncio.create_task(turns.begin()) for _ in range(2))
        await asyncio.sleep(0)
        turns.end()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 60)

    asyncio.run(two())


def test_whoever_waits_for_a_stuck_call_is_turned_away_until_it_returns() -> None:
    async def some() -> None:
        turns = OneAtATime()
        await turns.begin()
        waiting = asyncio.create_task(turns.begin())
        await asyncio.sleep(0)
        turns.give_up()
        with pytest.raises(StuckError):
            await waiting
        with pytest.raises(StuckError):
            await turns.begin()
        turns.end()
        await asyncio.wait_for(turns.begin(), 60)

    asyncio.run(some())
