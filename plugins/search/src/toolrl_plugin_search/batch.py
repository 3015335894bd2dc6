"""Gathers what is asked at one moment into batches.

    batcher = Batcher(run, max_batch=64, at_once=2)
    answer = await batcher.ask(item)          # from many tasks at once

Items that arrive while the event loop goes round once, or while all places for batches are taken, go together. An item
whose caller was cancelled before its batch begins isn't in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


class Batcher(Generic[Q, R]):
    """Used on one event loop."""

    def __init__(
        self,
        run: Callable[[Sequence[Q]], Awaitable[Sequence[R | Exception]]],
        *,
        max_batch: int,
        at_once: int,
        wait: float = 0.0,
    ) -> None:
        """`run` answers each item of a batch, in order, by a value or an exception; what it raises goes to all of them.
        `wait` is how many seconds the first item of a batch waits for company."""
        self._run = run
        self._max_batch = max_batch
        self._at_once = at_once
        self._wait = wait
        self._waiting: deque[tuple[Q, asyncio.Future[R]]] = deque()
        self._full = asyncio.Event()
        self._workers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Items that are in no batch yet."""
        return len(self._waiting)

    async def ask(self, item: Q) -> R:
        """The answer to one item. Raises what `run` raises or gives for it."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._waiting) >= self._max_batch:
            self._full.set()
        if self._workers < self._at_once:
            self._workers += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def stop(self) -> None:
        """End what runs, and cancel what waits."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        self._workers = 0

    async def _work(self) -> None:
        """Answers batches until no item is left."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait):
                    await self._full.wait()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]
                if len(self._waiting) < self._max_batch:
                    self._full.clear()
                await self._answer([(item, future) for item, future in batch if not future.done()])
        finally:
            self._workers -= 1

    async def _answer(self, batch: list[tuple[Q, asyncio.Future[R]]]) -> None:
        if not batch:
            return
        try:
            answers: Sequence[R | Exception] = await self._run([item for item, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers to {len(batch)} questions")
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
