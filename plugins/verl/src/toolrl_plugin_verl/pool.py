"""Daemon threads for blocking calls. Unlike those of `concurrent.futures` they never hold up an exit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonPool:
    """At most `size` threads, one more for each job until then."""

    def __init__(self, size: int, name: str) -> None:
        self._size = max(1, size)
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What the function gives, or raises. Raises RuntimeError for a pool that is closed."""
        if self._closed:
            raise RuntimeError(f"{self._name}: the pool is closed")
        future: Future[Any] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - it is the caller's
                    future.set_exception(error)

        self._jobs.put(job)
        with self._lock:
            if len(self._threads) < self._size:
                self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
                self._threads[-1].start()
        return future

    def close(self) -> None:
        """End the threads after the jobs in the queue."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # An idle thread keeps nothing alive.
