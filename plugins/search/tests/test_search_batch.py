"""What is asked at one moment goes together, and who leaves holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from toolrl_plugin_search.batch import Batcher


class Recorder:
    """A `run` that notes its batches, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self.at_once = self.most_at_once = 0

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        if -1 in items:
            raise ValueError("all of them")
        return [KeyError("this one") if item == -2 else item * 10 for item in items]


async def until(condition: Any) -> None:
    """Go round the event loop until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_simultaneous_items_are_one_batch() -> None:
    recorder = Recorder()
    batcher: Batcher[int, int] = Batcher(recorder, max_batch=100, at_once=2)
    assert await asyncio.gather(*(batcher.ask(n) for n in range(50))) == [n * 10 for n in range(50)]
    assert recorder.batches == [list(range(50))]
    assert await batcher.ask(7) == 70
    await batcher.stop()


async def test_batches_are_bounded_in_size_and_number() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    batcher: Batcher[int, int] = Batcher(recorder, max_batch=4, at_once=2)
    asked = [asyncio.ensure_future(batcher.ask(n)) for n in range(20)]
    await until(lambda: len(recorder.batches) == 2)
    assert batcher.waiting == 12
    recorder.gate.set()
    assert await asyncio.gather(*asked) == [n * 10 for n in range(20)]
    assert max(map(len, recorder.batches)) == 4
    assert recorder.most_at_once == 2
    assert sorted(n for batch in recorder.batches for n in batch) == list(range(20))
    await batcher.stop()


async def test_the_first_waits_for_company() -> None:
    recorder = Recorder()
    batcher: Batcher[int, int] = Batcher(recorder, max_batch=3, at_once=1, wait=3600)
    first = asyncio.ensure_future(batcher.ask(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert recorder.batches == []
    assert await asyncio.gather(first, batcher.ask(2), batcher.ask(3)) == [10, 20, 30]
    assert recorder.batches == [[1, 2, 3]], "a full batch waits for nobody"
    alone = asyncio.ensure_future(batcher.ask(4))
    await asyncio.sleep(0)
    await batcher.stop()
    with pytest.raises(asyncio.CancelledError):
        await alone


async def test_errors_of_a_batch_and_of_an_item() -> None:
    batcher: Batcher[int, int] = Batcher(Recorder(), max_batch=10, at_once=1)
    found = await asyncio.gather(batcher.ask(1), batcher.ask(-2), batcher.ask(3), return_exceptions=True)
    assert [found[0], found[2]] == [10, 30]
    assert isinstance(found[1], KeyError)
    found = await asyncio.gather(batcher.ask(1), batcher.ask(-1), return_exceptions=True)
    assert [type(one) for one in found] == [ValueError, ValueError]
    assert await batcher.ask(2) == 20
    await batcher.stop()


async def test_an_item_whose_caller_is_cancelled_before_its_batch_isnt_in_it() -> None:
    before = asyncio.all_tasks()
    recorder = Recorder()
    recorder.gate.clear()
    batcher: Batcher[int, int] = Batcher(recorder, max_batch=2, at_once=1)
    one, two, three, four = (asyncio.ensure_future(batcher.ask(n)) for n in range(4))
    await until(lambda: recorder.batches)
    three.cancel()
    one.cancel()
    await until(one.done)
    recorder.gate.set()
    assert await asyncio.gather(two, four) == [10, 30]
    assert recorder.batches == [[0, 1], [3]]
    await batcher.stop()
    assert asyncio.all_tasks() == before


async def test_stop_ends_what_runs() -> None:
    before = asyncio.all_tasks()
    recorder = Recorder()
    recorder.gate.clear()
    batcher: Batcher[int, int] = Batcher(recorder, max_batch=1, at_once=1)
    asked = [asyncio.ensure_future(batcher.ask(n)) for n in range(3)]
    await until(lambda: recorder.batches)
    await batcher.stop()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in done)
    assert recorder.cancelled == 1
    assert asyncio.all_tasks() == before


async def test_a_run_that_answers_too_few_leaves_nobody_waiting() -> None:
    async def few(items: Sequence[int]) -> list[int | Exception]:
        return [1]

    batcher: Batcher[int, int] = Batcher(few, max_batch=100, at_once=1)
    async with asyncio.timeout(60):
        found = await asyncio.gather(batcher.ask(1), batcher.ask(2), return_exceptions=True)
    assert [type(value) for value in found] == [RuntimeError, RuntimeError]
    assert "1 answers to 2 questions" in str(found[0])
    await batcher.stop()
