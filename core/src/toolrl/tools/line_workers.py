"""Worker processes that answer questions by lines of JSON, one at a time, each with a deadline that holds.

For libraries that can't be stopped inside this process, or that aren't trusted with its time. The worker is a module,
run as `python -m`: it prints one line when it is ready, then one for each line that it reads, and ends when its input
does. A line with `error` says why a question, or the start, went wrong. `LineWorker` is one such process, `LineWorkers`
some of them, each owned by a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

START_SECONDS = 120.0
"""For a worker to import its libraries on a busy machine."""
_Answer = TypeVar("_Answer")


class WorkerError(Exception):
    """A worker that can't be started, or a request that it can't answer."""


class WorkerDiedError(Exception):
    """A worker that ended at a question, or was killed at its deadline."""


class LineWorker:
    """One worker, started when it is first asked. Used by one thread at a time.

    `environment` is all that it gets of environment variables; None for those of this process.
    """

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        # -P: a file of the user's that is called like a library must not be imported for it.
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. Raises WorkerError, and WorkerDiedError where there is none after so many seconds."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between questions, so not of one
        process = self._process or self._start()
        answer = _ask(process, json.dumps(request), seconds)
        if answer is None:
            self.close()
            raise WorkerDiedError(f"the worker ended, or took more than {seconds:g} s")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process. Calling it again does nothing."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[str]:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
                start_new_session=True,  # so that it can be ended with what it forked
            )
        except OSError as error:
            raise WorkerError(f"its process can't be started: {error}") from None
        answer = _ask(process, None, START_SECONDS)
        if answer is None or "error" in answer:
            _end(process)
            reason = answer["error"] if answer else f"it ended with status {process.returncode}"
            raise WorkerError(f"its process can't be started: {reason}. By hand: {' '.join(self._command)} < /dev/null")
        self._process = process
        return process


class LineWorkers:
    """Some workers, started as they are needed. Need no closing: they end with this object or with the interpreter."""

    def __init__(self, count: int, make: Callable[[], LineWorker], *, name: str) -> None:
        self._make = make
        self._local = threading.local()
        self._workers: list[LineWorker] = []
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._finalizer = weakref.finalize(self, _close, self._pool, self._workers)

    async def run(self, work: Callable[[LineWorker], _Answer]) -> _Answer:
        """What `work` makes of one of the workers, in that worker's thread. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._with_worker, work)

    def close(self) -> None:
        """End the workers now."""
        self._finalizer()

    def _with_worker(self, work: Callable[[LineWorker], _Answer]) -> _Answer:
        worker: LineWorker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._make()
            self._workers.append(worker)
        return work(worker)


def _close(pool: ThreadPoolExecutor, workers: list[LineWorker]) -> None:
    # Not waited for: this may run in a thread of the pool. A worker that is asked meanwhile ends its question by dying.
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.close()


def _end(process: subprocess.Popen[str]) -> None:
    _kill(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a question that was never read is left in it
                pipe.close()
    process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """The worker and what it forked, which is in its group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ask(process: subprocess.Popen[str], request: str | None, seconds: float) -> dict[str, Any] | None:
    """The next answer; None where the process ended, or had to be killed after so many seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    watchdog = threading.Timer(seconds, _kill, [process])
    watchdog.daemon = True
    watchdog.start()
    try:
        if request is not None:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
    except (BrokenPipeError, ValueError):  # ended, or closed by another thread
        return None
    finally:
        watchdog.cancel()
    answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
    return answer
