"""What a component raised, told apart from what was asked of the code that awaits it; and components that don't let
themselves be stopped.

`except Exception` misses what components do raise: `sys.exit()` deep in a library, a panic of a Rust extension, which
is a BaseException, or a CancelledError of some future of their own that nobody asked for. Each of these is the
component's failure. Ctrl-C, the closing of a coroutine and a cancellation from outside are not.

A component that swallows its cancellation would keep whoever awaits it for ever. So it runs as a task of its own, gets
a few seconds to clean up after it was cancelled, and is then left to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from toolrl.tools.promptly import until

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
        """True where somebody asked this task to stop since the watch began."""
        return self._task is not None and self._task.cancelling() > self._before

    def failed(self, error: BaseException) -> bool:
        """True where `error` is the component's own failure."""
        if isinstance(error, asyncio.CancelledError):
            return not self.cancelled
        return not isinstance(error, KeyboardInterrupt | GeneratorExit)


async def stop(task: asyncio.Task[Any], left: Callable[[asyncio.Task[Any]], None]) -> None:
    """Cancel a task and wait until it has ended, at most CLEANUP_SECONDS. `left` is told of one that goes on."""
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=CLEANUP_SECONDS)
    finally:
        if not task.done():
            _strays.add(task)
            task.add_done_callback(_strays.discard)
            left(task)


async def dismiss() -> int:
    """End what was left to itself, once and for all; how many don't end even now.

    An event loop waits at its end for every task that it knows, so that one which never ends would keep the process for
    ever. These it forgets.
    """
    loop = asyncio.get_running_loop()
    left = {task for task in _strays if not task.done() and task.get_loop() is loop}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=CLEANUP_SECONDS)
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody needs to be told again
        asyncio.tasks._unregister_task(task)
    return len(left)


async def awaited(work: Awaitable[T]) -> T:
    """A coroutine of any awaitable."""
    return await work


class TooLateError(Exception):
    """Something that took longer than it may, and was stopped."""


async def stoppable(work: Awaitable[T], left: Callable[[asyncio.Task[Any]], None], seconds: float | None = None) -> T:
    """Await something that may swallow its cancellation: who is cancelled here waits no longer than `stop` does.

    Raises TooLateError after so many seconds; None for no limit.
    """
    task = asyncio.create_task(_outcome(work))
    try:
        await until(task, seconds)
    except asyncio.CancelledError:
        await stop(task, left)
        raise
    if not task.done():
        await stop(task, left)
        raise TooLateError
    value, error = task.result()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


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


async def _outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """A task must not end with SystemExit, which would end the event loop."""
    try:
        return await work, None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
        return None, error
