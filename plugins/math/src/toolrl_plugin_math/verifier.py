"""Asks math-verify in processes of its own, with a deadline that always holds.

In this process math-verify could neither be stopped (its alarms work in a main thread only, and inside the event loop
they would hit whatever runs) nor trusted with time: one answer may keep sympy busy for ever. So each of a few threads
owns a worker process (`verify_worker.py`), started when first needed. A worker that misses the deadline is killed, and
the next question starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolrl.errors import RewardError

START_SECONDS = 120.0
"""For a worker to import its libraries on a busy machine."""
GRACE_SECONDS = 1.0
"""Beyond the alarm of the worker itself, before it is killed."""


class Worker:
    """One process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def judge(self, golds: Sequence[str], text: str, timeout: float) -> str:
        """`right`, `wrong`, `timeout` or `bad_gold`. Raises RewardError where no worker can be started."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between questions, so not of one
        process = self._process or self._start()
        request = json.dumps({"golds": list(golds), "text": text, "timeout": timeout})
        answer = _ask(process, request, timeout + GRACE_SECONDS)
        if answer is None:  # killed at the deadline, or died of the question
            self.close()
            return "timeout"
        verdict: str = answer["verdict"]
        return verdict

    def close(self) -> None:
        """End the process. Calling it again does nothing."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[str]:
        # -P: a file of the user's that is called like a library must not be imported for it.
        command = [sys.executable, "-P", "-m", "toolrl_plugin_math.verify_worker"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        answer = _ask(process, None, START_SECONDS)
        if answer is None or "error" in answer:
            _end(process)
            reason = answer["error"] if answer else f"it ended with status {process.returncode}"
            raise RewardError(
                f"the process that judges mathematics can't be started: {reason}",
                hint=f"Try: {' '.join(command)} < /dev/null",
            )
        self._process = process
        return process


class Verifier:
    """Some workers. Needs no closing: they end with this object or with the interpreter."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._timeout = timeout
        self._local = threading.local()
        self._workers: list[Worker] = []
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="math-verify")
        self._finalizer = weakref.finalize(self, _close, self._pool, self._workers)

    async def judge(self, golds: Sequence[str], text: str) -> str:
        """`right`, `wrong`, `timeout` or `bad_gold`. Raises RewardError where no worker can be started."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, golds, text)

    def close(self) -> None:
        """End the workers now."""
        self._finalizer()

    def _ask(self, golds: Sequence[str], text: str) -> str:
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = Worker()
            self._workers.append(worker)
        return worker.judge(golds, text, self._timeout)


def _close(pool: ThreadPoolExecutor, workers: list[Worker]) -> None:
    # Not waited for: this may run in a thread of the pool. A worker that is asked meanwhile ends its question by dying.
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.close()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a question that was never read is left in it
                pipe.close()
    process.wait()


def _ask(process: subprocess.Popen[str], request: str | None, seconds: float) -> dict[str, Any] | None:
    """The next answer; None where the process ended, or had to be killed after so many seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    watchdog = threading.Timer(seconds, process.kill)
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
