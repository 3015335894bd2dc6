"""Synchronous tool code off the event loop: `await POOL.submit(function, *args)`.

Tools block: they sleep, wait for sockets, compute. asyncio's own executor has a handful of threads on a small machine,
so a few slow calls would hold up every episode. Both it and anyio join their threads when the interpreter ends, so one
hanging call would hang the exit. The threads here are daemons; an idle one is used again, else a new one starts.

A thread can't be stopped. A cancelled job is abandoned: its function runs on, and no longer counts against the pool's
limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Job(asyncio.Future[T]):
    """A function on its way through the pool, and the future of what it returns. Cancelling it abandons it."""

    def __init__(self, pool: ThreadPool, work: Callable[[], T]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._pool = pool
        self._work: Callable[[], T] | None = work
        self._at_end: list[Callable[[], None]] = []
        self.begun = self.raised = self.abandoned = False
        self.ended = False
        """Its function has returned, or will never begin."""

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self.abandon()
        return cancelled

    def abandon(self) -> None:
        """Stop waiting: a job that hasn't begun never will, a running one is left to itself."""
        if self._pool.abandon(self):
            super().cancel()
            self._end()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop once the function has ended; at once where it has already."""
        if self.ended:
            callback()
        else:
            self._at_end.append(callback)

    def run(self) -> tuple[Any, BaseException | None]:
        """Run the function, in a thread: what it returned, or raised."""
        work, self._work = self._work, None
        assert work is not None
        try:
            return work(), None
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
            self.raised = True
            return None, error

    def settle(self, value: Any, error: BaseException | None) -> None:
        """On the event loop: hand the outcome to the caller."""
        self._end()
        if self.done():
            return
        if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
            # A future refuses the first; the others would mean a Ctrl-C or a closing to the caller.
            error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
        if error is None:
            self.set_result(value)
            return
        self.set_exception(error)
        if self.abandoned:
            self.exception()  # There may be no caller left to retrieve it.

    def _end(self) -> None:
        callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()


class ThreadPool:
    """Daemon threads. Jobs beyond `limit` wait, first come, first served; None for no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = math.inf if limit is None else limit
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._threads = 0
        """Those with abandoned jobs not counted."""
        self._free = 0
        """Threads without a job; negative for jobs that wait for one."""
        self.abandoned = 0
        """Functions that run on after their callers left."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """A future of the running loop with what `function` returns or raises."""
        return self.put(functools.partial(function, *args, **kwargs))

    def put(self, work: Callable[[], T]) -> Job[T]:
        """The same for a function without arguments."""
        job = Job(self, functools.partial(contextvars.copy_context().run, work))
        with self._lock:
            self._queue.put(job)
            self._free -= 1
            self._start_thread()
        return job

    def abandon(self, job: Job[Any]) -> bool:
        """See Job.abandon; True for a job that hadn't begun."""
        with self._lock:
            if job.ended or job.abandoned:
                return False
            if not job.begun:  # The thread that gets it leaves it out.
                job.ended = True
                return True
            job.abandoned = True
            self.abandoned += 1
            self._threads -= 1
            self._start_thread()
            return False

    def close_idle(self) -> None:
        """End the threads that have nothing to do; the next jobs start new ones."""
        with self._lock:
            while self._free > 0:
                self._free -= 1
                self._threads -= 1
                self._queue.put(None)

    def _start_thread(self) -> None:
        """Where a job waits and there may be one more; under the lock."""
        if self._free < 0 and self._threads < self._limit:
            self._free += 1
            self._threads += 1
            threading.Thread(target=self._work, name="toolrl-tool", daemon=True).start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                job.begun = not job.ended
            outcome = job.run() if job.begun else None
            with self._lock:
                job.ended = True
                if job.abandoned:
                    self.abandoned -= 1
                else:
                    self._free += 1
            if outcome is not None:
                # Where the loop closed while the function ran, there is no caller any more.
                with suppress(RuntimeError):
                    job.get_loop().call_soon_threadsafe(job.settle, *outcome)
            if job.abandoned:  # Another thread may have taken its place.
                return
            del job, outcome  # An idle thread must not keep the last call's data alive.


POOL = ThreadPool()
"""Shared by all tools of a process."""
