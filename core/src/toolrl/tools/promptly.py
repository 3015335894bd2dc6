"""Awaiting what mostly has its answer at once, at the cost of a call.

Most of what a toolset is asked for an episode waits for nothing: a function has no opening messages and no reward. A
time limit around it costs ten times as much as the answer. So the first step is taken before any limit is set, and one
is set only for what has to wait. Nothing is lost by that: a limit takes effect where something waits, and up to there
it could not have.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine after its first step, which was taken in the task that makes this. What the step raises, making it
    raises. One that isn't `ended` has to be awaited by `rest`, in the same task and before anything else is."""

    __slots__ = ("_steps", "_waits_for", "ended", "value")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._steps = work
        self.value: T
        """What it gave, where it has ended."""
        self._waits_for: Any = None
        self.ended = False
        try:
            self._waits_for = work.send(None)
        except StopIteration as stop:
            self.ended, self.value = True, stop.value

    def rest(self) -> Awaitable[T]:
        """What is left of it."""
        return _rest(self._steps, self._waits_for)


@types.coroutine
def _rest(steps: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """`yield from`, but for the first step."""
    try:
        while True:
            error: BaseException | None = None
            try:
                sent = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - it is for those steps
                error = raised
            waits_for = steps.send(sent) if error is None else steps.throw(error)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        error = None


async def until(task: asyncio.Task[Any], seconds: float | None = None) -> None:
    """Wait until the task has ended, at most so many seconds: `asyncio.wait` for one task, in half its time. Cancelling
    this leaves the task alone."""
    if task.done():
        return
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(seconds, wake) if seconds is not None else None
    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
