"""Daemon threads for blocking calls, some at once. Unlike those of `concurrent.futures` they never hold up an exit."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class DaemonPool:
    """At most `size` threads, one more for each job until then. They end when the pool is closed or forgotten."""

    def __init__(self, size: int, name: str) -> None:
        self._size = max(1, size)
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._close = weakref.finalize(self, _end, self._jobs, self._size)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What the function gives, or raises. Raises RuntimeError for a pool that is closed."""
        if not self._close.alive:
            raise RuntimeError(f"{self._name}: the pool is closed")
        future: Future[Any] = Future()
        with self._lock:
            start = self._threads < self._size
            self._threads += start
        if start:
            threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
        self._jobs.put((future, function, args, kwargs))
        return future

    def close(self) -> None:
        """Let the threads end after what is in the queue. Calling it again does nothing."""
        self._close()


def _end(jobs: queue.SimpleQueue[_Job | None], size: int) -> None:
    for _ in range(size):
        jobs.put(None)


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        future, function, args, kwargs = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        else:
            future.set_result(result)
        del job, future, function, args, kwargs  # An idle thread keeps nothing alive.
