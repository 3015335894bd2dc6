"""Synchronous tool code off the event loop.

Tools block: they sleep, wait for sockets, compute. asyncio's own executor has a handful of threads on a small machine,
so a few slow calls would hold up every episode, and it is joined when the interpreter ends, so one hanging call would
hang the exit. This pool starts a thread when none is idle, up to `limit`, and its threads are daemons. Threads can't be
stopped: where the waiting coroutine is cancelled, the function runs on and its thread comes back when it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple["asyncio.AbstractEventLoop", "asyncio.Future[Any]", Callable[[], Any]]


class ThreadPool:
    """Daemon threads that grow with the number of calls at once. Jobs beyond `limit` wait, first come, first served."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> asyncio.Future[T]:
        """A future of the running loop with what `function` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        work = functools.partial(context.run, functools.partial(function, *args, **kwargs))
        with self._lock:
            self._unfinished += 1
            grow = self._unfinished > self._threads and self._threads < self._limit
            self._threads += grow
            number = self._threads
        if grow:
            try:
                threading.Thread(target=self._run, name=f"toolrl-tool-{number}", daemon=True).start()
            except RuntimeError:  # The system gives no more threads: those that are there have to do.
                with self._lock:
                    self._threads -= 1
                    if self._threads == 0:
                        self._unfinished -= 1
                        raise
        self._jobs.put((loop, future, work))
        return future

    def _run(self) -> None:
        while True:
            loop, future, work = self._jobs.get()
            value: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    value = work()
                except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the one who waits
                    error = raised
            with self._lock:
                self._unfinished -= 1
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                # The loop closed while the function ran: nobody waits any more.
                continue
            finally:
                # An idle thread must not keep the last call's data alive.
                del loop, future, work, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
        # A future refuses the first. The others mean something to who awaits it, but no Ctrl-C arrives in a thread.
        error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


POOL = ThreadPool()
"""Shared by all tools of a process."""
