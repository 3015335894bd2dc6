"""Daemon threads for blocking calls. Unlike those of `concurrent.futures` they never hold up an exit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any


class DaemonPool:
    """At most `size` threads, one more for each job until then."""

    def __init__(self, size: int, name: str) -> None:
        self._size = max(1, size)
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What the function gives, or raises. Raises RuntimeError for a pool that is closed."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: the pool is closed")
            if self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put((future, partial(function, *args, **kwargs)))
        return future

    def close(self) -> None:
        """End the threads after the jobs in the queue."""
        with self._lock:
            self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run(*job)
            del job  # An idle thread keeps nothing alive.


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
