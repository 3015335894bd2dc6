"""Finds code of a tool or reward that blocks the event loop, names it, and notes calls that overran their time limit.

A coroutine that computes, or calls `time.sleep` or `requests.get`, holds up every episode until its next `await`, and
no timer can stop it meanwhile. `Watched` notes which component runs a step; while episodes run, a thread reads the
notes and warns of a step that lasts, with its place in the code.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from types import FrameType
from typing import Any, Generic, TypeVar

from toolrl.tracebacks import from_author

T = TypeVar("T")
BLOCKED_SECONDS = 0.5
"""Length of a step that is warned of."""

_log = logging.getLogger(__name__)
_inside: ContextVar[bool] = ContextVar("toolrl_in_component", default=False)
_steps: dict[int, tuple[str, float]] = {}
"""What runs a step now, and since when, by thread."""
_WARNING = """\
%s blocks the event loop and holds up all episodes. Make it a plain `def` function, which runs in a thread, or await
what takes long: `asyncio.sleep`, `asyncio.to_thread`, an async client. It is at:
%s"""
_lock = threading.Lock()
_open = 0
_closed = threading.Event()


class Watched(Generic[T]):
    """A coroutine whose steps are noted under a component's name. Awaited, or stepped by hand like a coroutine."""

    __slots__ = ("_deadline", "_name", "_work", "overran")

    def __init__(self, name: str, work: Coroutine[Any, Any, T], seconds: float | None = None) -> None:
        self._name = name
        self._work = work
        self._deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
        self.overran = False
        """One of its own steps was running when its time was up."""

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # type: ignore[return-value]  # it has a generator's methods

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def close(self) -> None:
        self._work.close()

    __del__ = close
    """One that was cancelled before its first step isn't complained of."""

    def _step(self, step: Any, *args: Any) -> Any:
        thread, begun = threading.get_ident(), time.monotonic()
        outer = _steps.get(thread)
        token = _inside.set(True)
        _steps[thread] = self._name, begun
        try:
            return step(*args)
        finally:
            _inside.reset(token)
            if outer is None:
                _steps.pop(thread, None)
            else:
                _steps[thread] = outer
            if begun < self._deadline <= time.monotonic():
                self.overran = True


def in_component() -> bool:
    """Whether a component's code is running: in a step of its coroutine, or a thread that one started."""
    return _inside.get()


def called_inside(function: Callable[..., T], *args: Any) -> T:
    """Call a component's function in a thread that no step started."""
    token = _inside.set(True)
    try:
        return function(*args)
    finally:
        _inside.reset(token)


@contextmanager
def watching() -> Iterator[None]:
    """Around episodes, however many of these are open at once: the first starts the thread, the last ends it."""
    global _open, _closed
    with _lock:
        _open += 1
        if _open == 1:
            _closed = threading.Event()
            threading.Thread(target=_watch, args=(_closed,), name="toolrl-loop-watch", daemon=True).start()
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _closed.set()


def _watch(closed: threading.Event) -> None:
    warned: set[str] = set()
    while not closed.wait(BLOCKED_SECONDS / 5):
        for thread, note in list(_steps.items()):
            name, begun = note
            if time.monotonic() - begun < BLOCKED_SECONDS or name in warned:
                continue
            frames = list(traceback.walk_stack(sys._current_frames().get(thread)))
            if _steps.get(thread) is note:  # It may have ended meanwhile.
                warned.add(name)
                _log.warning(_WARNING, name, _place(frames))


def _place(frames: list[tuple[FrameType, int]]) -> str:
    """The stack of the step, innermost frame last."""
    inside = takewhile(lambda it: it[0].f_code is not Watched._step.__code__, frames)
    return "".join(from_author(traceback.StackSummary.extract(iter([*inside][::-1]))).format()).rstrip()
