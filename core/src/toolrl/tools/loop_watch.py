"""Warns of code of a tool or reward that blocks the event loop, with its name and its place.

A coroutine that computes, or calls `time.sleep` or `requests.get`, holds up every episode until its next `await`, and
no timer can stop it meanwhile. While episodes run, a thread sends the loop a callback now and then; where the loop
doesn't come to it, the thread looks into the loop's stack for the component that holds it up.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from toolrl.tools import cancellation
from toolrl.tracebacks import from_author

T = TypeVar("T")
BLOCKED_SECONDS = 0.5
"""Length of a step that is warned of."""

_log = logging.getLogger(__name__)
_inside: ContextVar[bool] = ContextVar("toolrl_in_component", default=False)
_WARNING = """\
%s blocks the event loop and holds up all episodes. Make it a plain `def` function, which runs in a thread, or await
what takes long: `asyncio.sleep`, `asyncio.to_thread`, an async client. It is at:
%s"""


@dataclass(eq=False)
class _Running:
    name: str
    blocked: bool = False
    """Whether it held up the loop."""


async def run_component(
    name: str, function: Callable[..., Awaitable[T]], *args: Any, seconds: float | None = None
) -> T:
    """Call and await a component's code under its name, such as `tool 'search'`. Raises TooLateError where it blocked
    the loop and took more than `seconds`, since no timer could stop it meanwhile."""
    running, started = _Running(name), time.monotonic()
    token = _inside.set(True)
    try:
        result = await function(*args)
    finally:
        _inside.reset(token)
    if running.blocked and seconds is not None and time.monotonic() - started > seconds:
        raise cancellation.TooLateError
    return result


async def run_stoppable(
    name: str,
    function: Callable[..., Awaitable[T]],
    *args: Any,
    seconds: float | None = None,
    left: Callable[[asyncio.Task[Any]], None] = lambda task: None,
) -> T:
    """The same for code that may swallow its cancellation: a cancelled caller waits for it CLEANUP_SECONDS at most, and
    TooLateError is raised after `seconds` in any case. `left` is called with a task that still runs."""

    def warn(task: asyncio.Task[Any]) -> None:
        _log.warning(
            "%s was cancelled and didn't end within %g s; it is left to itself. "
            "Don't catch asyncio.CancelledError in it, or raise it again.",
            name,
            cancellation.CLEANUP_SECONDS,
        )
        left(task)

    work = run_component(name, function, *args, seconds=seconds)
    return await cancellation.stoppable(work, warn, seconds)


def call_component(function: Callable[..., T], *args: Any) -> T:
    """Call a component's function in a thread."""
    token = _inside.set(True)
    try:
        return function(*args)
    finally:
        _inside.reset(token)


def in_component() -> bool:
    """Whether a component's code is running: in its coroutine, or in a thread that it started."""
    return _inside.get()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()


@contextmanager
def watching() -> Iterator[None]:
    """Watch the running loop, however many of these are open at once: the first starts the thread, the last ends it."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = _Watch(loop)
    watch.users += 1
    try:
        yield
    finally:
        watch.users -= 1
        if not watch.users:
            watch.closed.set()
            _watches.pop(loop, None)


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.closed = threading.Event()
        thread = threading.get_ident()
        threading.Thread(target=self._run, args=(loop, thread), name="toolrl-loop-watch", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        warned: set[str] = set()
        while not self.closed.wait(BLOCKED_SECONDS / 5):
            reached = threading.Event()
            try:
                loop.call_soon_threadsafe(reached.set)
            except RuntimeError:  # The loop is closed.
                return
            if reached.wait(BLOCKED_SECONDS / 2):
                continue
            before = _component(thread)
            if reached.wait(BLOCKED_SECONDS / 2):
                continue
            frames = _component(thread)
            # Another component by now: many short steps, and none that blocks.
            if frames and before and frames[-1] is before[-1] and not reached.is_set():
                running = frames[-1].f_locals["running"]
                running.blocked = True
                if running.name not in warned:
                    warned.add(running.name)
                    _log.warning(_WARNING, running.name, _place(frames[:-1]))
            del before, frames
            while not reached.wait(BLOCKED_SECONDS) and not self.closed.is_set():
                pass


def _component(thread: int) -> list[FrameType]:
    """The frames of the component that a thread runs, the innermost first and `run_component` last."""
    frames: list[FrameType] = []
    for frame, _ in traceback.walk_stack(sys._current_frames().get(thread)):
        frames.append(frame)
        if frame.f_code is run_component.__code__:
            return frames
    return []


def _place(frames: list[FrameType]) -> str:
    lines = ((frame, frame.f_lineno) for frame in reversed(frames))
    return "".join(from_author(traceback.StackSummary.extract(lines)).format()).rstrip()
