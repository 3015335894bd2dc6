"""Worker processes for a library that may hang or crash: replaced when they are lost, and several of them in threads.

Each is a `toolrl.tools.subprocess_pool.WorkerProcess` that answers by what the `build(*arguments)` of a module returns.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from toolrl.tools.subprocess_pool import ProcessCrashError, WorkerProcess

START_SECONDS = 120.0
"""For a worker to import its libraries on a busy machine."""
_Answer = TypeVar("_Answer")


class WorkerError(Exception):
    """A worker that can't be started, or a request that it can't answer."""


class RestartingWorker:
    """A worker that is started anew when it was lost. Used by one thread at a time. Its errors aren't shown.

    `environment` is all that it gets of environment variables; None for those of this process.
    """

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._make = partial(WorkerProcess, module, *arguments, env=environment, stderr=subprocess.DEVNULL)
        code = f"import {module} as worker; worker.build(*{list(arguments)})"
        self._by_hand = shlex.join([sys.executable, "-P", "-c", code])
        self._worker: WorkerProcess | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. Raises WorkerError where it raises, ProcessCrashError where it ends or takes longer."""
        worker = self._worker
        if worker is None or not worker.usable:
            self.close()
            self._worker = worker = self._make()
            try:
                _answer(worker, {}, START_SECONDS)
            except (OSError, ProcessCrashError, WorkerError) as error:
                self.close()
                raise WorkerError(f"its process can't be started: {error}. By hand: {self._by_hand}") from None
        return _answer(worker, request, seconds)

    def close(self) -> None:
        """End the process. Calling it again does nothing."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


class WorkerThreads:
    """Some workers, started as they are needed. Need no closing: they end with this object or with the interpreter."""

    def __init__(self, count: int, make: Callable[[], RestartingWorker], *, name: str) -> None:
        self._idle = [make() for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._finalizer = weakref.finalize(self, _close, self._pool, tuple(self._idle))

    async def run(self, work: Callable[[RestartingWorker], _Answer]) -> _Answer:
        """What `work` makes of one of the workers, in a thread. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._with_worker, work)

    def close(self) -> None:
        """End the workers now."""
        self._finalizer()

    def _with_worker(self, work: Callable[[RestartingWorker], _Answer]) -> _Answer:
        worker = self._idle.pop()  # There are no more threads than workers.
        try:
            return work(worker)
        finally:
            self._idle.append(worker)


def _close(pool: ThreadPoolExecutor, workers: Iterable[RestartingWorker]) -> None:
    # Not waited for: this may run in a thread of the pool. A worker that is asked meanwhile ends its question by dying.
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.close()


def _answer(worker: WorkerProcess, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    reply = worker.ask(request, seconds)
    if "crash" in reply:
        raise WorkerError(str(reply["crash"]["message"])[:2000])
    return reply
