"""Queries of one moment go together, and a caller that leaves holds up no other."""

from __future__ import annotations

import asyncio
from typing import Any

from toolrl_plugin_search.passages import Hit, Passage
from toolrl_plugin_search.retrievers import Retriever


class Recorder(Retriever):
    """Finds each query itself; notes its batches, and waits where it is told to."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__(**bounds)
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self.at_once = self.most_at_once = 0

    async def start(self) -> None: ...

    async def ask(self, query: str) -> str:
        return (await self.search(query, 1))[0].passage.id

    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]:
        self.batches.append(queries)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        if "bad" in queries:
            raise ValueError("all of them")
        return [[Hit(Passage(query, query), 1.0)] * 2 for query in queries if query != "lost"]


async def until(condition: Any) -> None:
    """Go round the event loop until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_batches_are_bounded_in_size_and_number() -> None:
    retriever = Recorder(max_batch=4, at_once=2)
    retriever.gate.clear()
    names = [str(number) for number in range(20)]
    asked = [asyncio.ensure_future(retriever.ask(name)) for name in names]
    await until(lambda: len(retriever.batches) == 2)
    retriever.gate.set()
    assert await asyncio.gather(*asked) == names
    assert max(map(len, retriever.batches)) == 4
    assert retriever.most_at_once == 2
    assert sorted(name for batch in retriever.batches for name in batch) == sorted(names)
    await retriever.stop()


async def test_a_query_whose_caller_is_cancelled_before_its_batch_isnt_in_it() -> None:
    before = asyncio.all_tasks()
    retriever = Recorder(max_batch=2, at_once=1)
    retriever.gate.clear()
    one, two, three, four = (asyncio.ensure_future(retriever.ask(name)) for name in "0123")
    await until(lambda: retriever.batches)
    three.cancel()
    one.cancel()
    await until(one.done)
    retriever.gate.set()
    assert await asyncio.gather(two, four) == ["1", "3"]
    assert retriever.batches == [["0", "1"], ["3"]]
    await retriever.stop()
    assert asyncio.all_tasks() == before


async def test_stop_ends_what_runs() -> None:
    before = asyncio.all_tasks()
    retriever = Recorder(max_batch=1, at_once=1)
    retriever.gate.clear()
    asked = [asyncio.ensure_future(retriever.ask(name)) for name in "012"]
    await until(lambda: retriever.batches)
    await retriever.stop()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in done)
    assert retriever.cancelled == 1
    assert asyncio.all_tasks() == before
