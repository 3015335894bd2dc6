"""Synchronous tool code off the event loop.

Tools block: they sleep, wait for sockets, compute. asyncio's own executor has a handful of threads on a small machine,
so a few slow calls would hold up every episode, and it is joined when the interpreter ends, so one hanging call would
hang the exit. This pool starts a thread when none is idle, up to `limit`; its threads are daemons, and end when they
were idle for a while.

A thread can't be stopped. Where whoever waits leaves, the job is abandoned: its function runs on, but its thread counts
no more against `limit`, so that calls which never return can't fill the pool. A `Lane` bounds how many of these one
tool may have; above that its calls are refused until some have returned.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from toolrl.errors import ToolUnavailableError

T = TypeVar("T")
MOST_ABANDONED = 64
"""Calls of one tool that may run on after everybody left; with so many, its next calls are refused."""
IDLE_SECONDS = 30.0
"""After which a thread without work ends."""

_log = logging.getLogger(__name__)


class Job(asyncio.Future[T]):
    """A function on its way through the pool, and the future of what it returns. Cancelling it abandons it."""

    def __init__(self, pool: ThreadPool, work: Callable[[], T], lane: Lane | None) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.pool = pool
        self.work: Callable[[], T] | None = work
        self.lane = lane
        self.begun = self.raised = False
        self._put_at = self.get_loop().time()
        self.begun_at: float | None = None
        """When its function began, by the loop's clock."""
        self.running = False
        self.abandoned = False
        self.ended = False
        """Its function has returned, or will never begin."""
        self._at_end: list[Callable[[], None]] = []

    @property
    def queued(self) -> bool:
        """True where its function hasn't begun, and still may."""
        return not self.begun and not self.ended

    @property
    def waited(self) -> float:
        """Seconds that it waited for a thread, so far where it is still queued."""
        if self.begun_at is not None:
            return self.begun_at - self._put_at
        return self.get_loop().time() - self._put_at if self.queued else 0.0

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self.abandon()
        return cancelled

    def abandon(self) -> None:
        """Nobody waits any more: a job that hasn't begun never will, a running one is left to itself."""
        self.pool.abandon(self)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop once the function doesn't run any more; at once where that is so already."""
        if self.ended:
            callback()
        else:
            self._at_end.append(callback)

    def settle(self, value: Any, error: BaseException | None) -> None:
        """On the event loop, after the function returned or raised."""
        self.raised = error is not None
        callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()
        if self.done():
            return
        if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
            # A future refuses the first. The others mean something to who awaits it, but no Ctrl-C arrives in a thread.
            error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
        if error is not None:
            self.set_exception(error)
            if self.abandoned:
                self.exception()  # Nobody may ever ask, and that is no mistake.
        else:
            self.set_result(value)


class ThreadPool:
    """Daemon threads that grow with the number of calls at once. Jobs beyond `limit` wait, first come, first served."""

    def __init__(self, limit: int = 256, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        """Those that count: idle, or with a job that somebody waits for."""
        self._unfinished = 0
        """Jobs in the queue, and running ones that somebody waits for."""
        self._abandoned = 0
        self._started = 0

    @property
    def abandoned(self) -> int:
        """Functions that run on although nobody waits for them."""
        return self._abandoned

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """A future of the running loop with what `function` returns or raises."""
        return self.put(functools.partial(function, *args, **kwargs))

    def put(self, work: Callable[[], T], lane: Lane | None = None) -> Job[T]:
        """The same for a function without arguments, which counts in `lane` where it is abandoned."""
        job = Job(self, functools.partial(contextvars.copy_context().run, work), lane)
        with self._lock:
            self._unfinished += 1
        try:
            self._grow()
        except RuntimeError:
            with self._lock:
                self._unfinished -= 1
            raise
        noted = _noted.get()
        if noted is not None:
            noted.append(job)
        self._jobs.put(job)
        return job

    def abandon(self, job: Job[Any]) -> None:
        """See Job.abandon."""
        with self._lock:
            if job.ended or job.abandoned:
                return
            if not job.running:
                job.ended, job.work = True, None
                return
            job.abandoned = True
            self._abandoned += 1
            self._unfinished -= 1
            self._threads -= 1
            if job.lane is not None:
                job.lane.abandoned += 1
        if job.lane is not None:
            job.lane.report()
        try:
            self._grow()  # Jobs may wait for the thread that is lost to them.
        except RuntimeError:
            _log.exception("no thread could be started in the place of one that doesn't come back")

    def close_idle(self) -> None:
        """End the threads that have nothing to do; the next jobs start new ones."""
        with self._lock:
            idle = max(self._threads - self._unfinished, 0)
            self._threads -= idle
        for _ in range(idle):
            self._jobs.put(None)

    def _grow(self) -> None:
        """Start a thread where there are more jobs than threads. Raises RuntimeError where there are no threads and the
        system gives none; else those that are there have to do."""
        with self._lock:
            if self._unfinished <= self._threads or self._threads >= self._limit:
                return
            self._threads += 1
            self._started += 1
            name = f"toolrl-tool-{self._started}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if self._threads == 0:
                    raise

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                with self._lock:
                    if self._threads > self._unfinished:
                        self._threads -= 1
                        return
                continue
            if job is None:
                return
            if not self._work(job):
                return
            # An idle thread must not keep the last call's data alive.
            del job

    def _work(self, job: Job[Any]) -> bool:
        """Run a job; False where the thread is one too many afterwards."""
        with self._lock:
            job.running = job.begun = not job.ended
            job.begun_at = job.get_loop().time() if job.begun else None
            work, job.work = job.work, None
        value: Any = None
        error: BaseException | None = None
        if work is not None:
            try:
                value = work()
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the one who waits
                error = raised
        stays = self._end(job)
        # Where the loop closed while the function ran, nobody waits any more.
        with suppress(RuntimeError):
            job.get_loop().call_soon_threadsafe(job.settle, value, error)
        return stays

    def _end(self, job: Job[Any]) -> bool:
        with self._lock:
            job.running, job.ended = False, True
            if not job.abandoned:
                self._unfinished -= 1
                return True
            self._abandoned -= 1
            if job.lane is not None:
                job.lane.abandoned -= 1
            if self._threads >= min(self._unfinished, self._limit):
                return False  # Another thread took its place, or there is nothing to do.
            self._threads += 1
            return True


class Lane:
    """One tool's way into the pool."""

    def __init__(self, tool: str, pool: ThreadPool, *, most_abandoned: int = MOST_ABANDONED) -> None:
        self._tool = tool
        self._pool = pool
        self._most = most_abandoned
        self._reported = 0
        self.abandoned = 0
        """Calls that run on although nobody waits for them. Changed under the pool's lock."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """Run it in a thread, whatever happened to earlier calls."""
        return self._pool.put(functools.partial(function, *args, **kwargs), self)

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        """The same for a call of the model. Raises ToolUnavailableError where too many earlier ones never returned."""
        if self.abandoned >= self._most:
            raise ToolUnavailableError(
                f"The tool {self._tool!r} can't be called now: {self.abandoned} earlier calls of it still haven't "
                "returned. Go on without it."
            )
        return self.submit(function, *args, **kwargs)

    def report(self) -> None:
        """Say that calls don't come back: the first time, and when no more are let in."""
        if self.abandoned in (1, self._most) and self.abandoned > self._reported:
            self._reported = self.abandoned
            _log.warning(
                "tool %r: %d of its calls run on in a thread after they were given up, as a thread can't be stopped; "
                "at %d its calls are refused. Let it end by itself, or run it in a process: @tool(process=True).",
                self._tool,
                self.abandoned,
                self._most,
            )


_noted: contextvars.ContextVar[list[Job[Any]] | None] = contextvars.ContextVar("toolrl_noted_jobs", default=None)


class _Noting:
    """See `noting_jobs`. A class of its own: it stands around every call, and `contextmanager` takes four times as
    long."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[Job[Any]]:
        jobs: list[Job[Any]] = []
        self._token = _noted.set(jobs)
        return jobs

    def __exit__(self, *error: object) -> None:
        _noted.reset(self._token)


def noting_jobs() -> AbstractContextManager[list[Job[Any]]]:
    """A list to which every job is added that is put into a pool inside of this, in this task or one it makes."""
    return _Noting()


POOL = ThreadPool()
"""Shared by all tools of a process."""
