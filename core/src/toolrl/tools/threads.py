"""Synchronous tool code off the event loop: `await POOL.submit(function, *args)`.

Tools block: they sleep, wait for sockets, compute. asyncio's own executor has a handful of threads on a small machine,
so a few slow calls would hold up every episode. Both it and anyio join their threads when the interpreter ends, so one
hanging call would hang the exit. The threads here are daemons; an idle one is used again, else a new one starts.

A thread can't be stopped. A cancelled job is abandoned: its function runs on, and no longer counts against the pool's
limit. A `Lane` bounds how many abandoned jobs one tool may have; beyond that its calls are refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from toolrl.errors import ToolUnavailableError

T = TypeVar("T")
MOST_ABANDONED = 64
"""Abandoned calls that one tool may have; with so many, its next calls are refused."""

_log = logging.getLogger(__name__)


class Job(asyncio.Future[T]):
    """A function on its way through the pool, and the future of what it returns. Cancelling it abandons it."""

    def __init__(self, pool: ThreadPool, work: Callable[[], T], lane: Lane | None) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._pool = pool
        self._work: Callable[[], T] | None = work
        self._at_end: list[Callable[[], None]] = []
        self.lane = lane
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

    def put(self, work: Callable[[], T], lane: Lane | None = None) -> Job[T]:
        """The same for a function without arguments; `lane` counts it where it is abandoned."""
        job = Job(self, functools.partial(contextvars.copy_context().run, work), lane)
        with self._lock:
            self._queue.put(job)
            self._free -= 1
            self._start_thread()
        jobs = _collected.get()
        if jobs is not None:
            jobs.append(job)
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
            self._count(job, +1)
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

    def _count(self, job: Job[Any], change: int) -> None:
        self.abandoned += change
        if job.lane is not None:
            job.lane.count(change)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                job.begun = not job.ended
            outcome = job.run() if job.begun else None
            with self._lock:
                job.ended = True
                if job.abandoned:
                    self._count(job, -1)
                else:
                    self._free += 1
            if outcome is not None:
                # Where the loop closed while the function ran, there is no caller any more.
                with suppress(RuntimeError):
                    job.get_loop().call_soon_threadsafe(job.settle, *outcome)
            if job.abandoned:  # Another thread may have taken its place.
                return
            del job, outcome  # An idle thread must not keep the last call's data alive.


class Lane:
    """One tool's way into the pool."""

    def __init__(self, tool: str, pool: ThreadPool, *, most_abandoned: int = MOST_ABANDONED) -> None:
        self._tool = tool
        self._pool = pool
        self._most = most_abandoned
        self._reported = 0
        self.abandoned = 0
        """Its calls that run on after their callers left."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """Run it in a thread, whatever happened to earlier calls."""
        return self._pool.put(functools.partial(function, *args, **kwargs), self)

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """The same for a call of the model. Raises ToolUnavailableError."""
        self.check()
        return self.submit(function, *args, **kwargs)

    def check(self) -> None:
        """Raises ToolUnavailableError where too many calls of the model never returned."""
        if self.abandoned >= self._most:
            raise ToolUnavailableError(
                f"The tool {self._tool!r} can't be called now: {self.abandoned} earlier calls of it still haven't "
                "returned. Go on without it."
            )

    def count(self, change: int) -> None:
        """A call was abandoned (+1), or such a call returned (-1). Logs the first, and the one that fills the lane."""
        self.abandoned += change
        if self.abandoned in (1, self._most) and self.abandoned > self._reported:
            self._reported = self.abandoned
            _log.warning(
                "tool %r: %d of its calls run on in a thread after they were given up, as a thread can't be stopped; "
                "at %d its calls are refused. Let it end by itself, or run it in a process: @tool(process=True).",
                self._tool,
                self.abandoned,
                self._most,
            )


_collected: contextvars.ContextVar[list[Job[Any]] | None] = contextvars.ContextVar("toolrl_jobs", default=None)


@contextmanager
def collecting_jobs() -> Iterator[list[Job[Any]]]:
    """A list to which every job is added that is put into a pool inside of this, in this task or one it makes."""
    jobs: list[Job[Any]] = []
    token = _collected.set(jobs)
    try:
        yield jobs
    finally:
        _collected.reset(token)


POOL = ThreadPool()
"""Shared by all tools of a process."""
