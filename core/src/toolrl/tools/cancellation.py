"""Tells a component's own exceptions from a cancellation apart, and stops components that swallow theirs.

`except Exception` misses what components do raise: `sys.exit()` deep in a library, a panic of a Rust extension, which
is a BaseException, or a CancelledError of some future of their own. Each of these is the component's failure. Ctrl-C,
the closing of a coroutine and a cancellation from outside are not.

A component that swallows its cancellation would hold up its caller for ever: neither `asyncio.timeout` nor a cancel
scope of anyio can leave it. So it runs as a task of its own, gets a few seconds to clean up after it was cancelled, and
is then left to itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
CLEANUP_SECONDS = 5.0
"""How long something that was cancelled may take to end."""

_strays: set[asyncio.Task[Any]] = set()
"""The event loop itself keeps no task alive."""


class Watch:
    """Made before a component is awaited, in the task that awaits it; asked after it raised."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    @property
    def cancelled(self) -> bool:
        """True where this task was cancelled since the watch began."""
        return self._task is not None and self._task.cancelling() > self._before

    def failed(self, error: BaseException) -> bool:
        """True where `error` is the component's own failure."""
        if isinstance(error, asyncio.CancelledError):
            return not self.cancelled
        return not isinstance(error, KeyboardInterrupt | GeneratorExit)


class TooLateError(Exception):
    """Something that took longer than it may, and was stopped."""


async def stoppable(work: Awaitable[T], left: Callable[[asyncio.Task[Any]], None], seconds: float | None = None) -> T:
    """Await something that may swallow its cancellation: a cancelled caller waits CLEANUP_SECONDS for it at most.

    `left` is called with a task that still runs. Raises TooLateError after so many seconds; None for no limit.
    """
    task = asyncio.create_task(_outcome(work))
    try:
        await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task, left)
        if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()  # Cancelled before its first step.
        raise
    if not task.done():
        await _stop(task, left)
        raise TooLateError
    value, error = task.result()
    if error is None:
        return value  # type: ignore[return-value]  # without an error there is a value
    try:
        raise error
    finally:
        del error  # Or it would hold this frame, and the frame it, until the collector looks.


async def uninterrupted(work: Awaitable[T]) -> T:
    """Await something to its end; a cancellation that arrives meanwhile takes effect afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001 - raised by result() below
            break
    if cancelled is not None:
        raise cancelled
    return task.result()


async def end_strays() -> int:
    """End the tasks of this loop that were left to themselves; how many didn't let themselves be cancelled even now.

    An event loop waits at its end for every task that isn't done, so that one which never ends would keep the process
    for ever. The coroutines of these are closed.
    """
    loop = asyncio.get_running_loop()
    left = {task for task in _strays if not task.done() and task.get_loop() is loop}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=CLEANUP_SECONDS)
    for task in left:
        coroutine: Any = task.get_coro()
        with suppress(RuntimeError):  # The component ignored this, too; what awaits it has ended all the same.
            coroutine.close()
        task.cancel()
    if left:
        ended, _ = await asyncio.wait(left, timeout=CLEANUP_SECONDS)
        for task in ended:
            if not task.cancelled():
                task.exception()  # Retrieved: the task's coroutine was closed, and it complains of that.
    return len(left)


async def _stop(task: asyncio.Task[Any], left: Callable[[asyncio.Task[Any]], None]) -> None:
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=CLEANUP_SECONDS)
    finally:
        if not task.done():
            _strays.add(task)
            task.add_done_callback(_strays.discard)
            left(task)


async def _outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """A task must not end with SystemExit, which would end the event loop."""
    try:
        return await work, None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
        return None, error
