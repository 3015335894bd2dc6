"""Asks math-verify in processes of its own, with a deadline that always holds.

In this process math-verify could neither be stopped (its alarms work in a main thread only, and inside the event loop
they would hit whatever runs) nor trusted with time: one answer may keep sympy busy for ever. So some worker processes
(`verify_worker.py`) judge, each started when first needed. One that misses the deadline is killed, and the next
question starts another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from toolrl.errors import RewardError
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl_common.workers import RestartingWorker, WorkerError, WorkerThreads

Mode = Literal["guarded", "plain"]


def worker(mode: Mode = "guarded") -> RestartingWorker:
    """One process. In the mode `plain` math-verify judges as it is, with its false positives."""
    return RestartingWorker("toolrl_plugin_math.verify_worker", mode)


def judge(process: RestartingWorker, golds: Sequence[str], text: str, timeout: float) -> str:
    """`right`, `wrong`, `timeout` or `bad_gold`. Raises RewardError where the worker can't judge."""
    try:
        answer = process.ask({"golds": list(golds), "text": text}, timeout)
    except ProcessCrashError:  # killed at the deadline, or died of the question
        return "timeout"
    except WorkerError as error:
        raise RewardError(
            f"the answer can't be judged by math-verify: {error}", hint="Try: toolrl doctor math"
        ) from None
    return str(answer["verdict"])


class Verifier:
    """Some workers. Needs no closing: they end with this object or with the interpreter."""

    def __init__(self, workers: int, timeout: float, mode: Mode = "guarded") -> None:
        self._timeout = timeout
        self._workers = WorkerThreads(workers, partial(worker, mode), name="math-verify")

    async def judge(self, golds: Sequence[str], text: str) -> str:
        """`right`, `wrong`, `timeout` or `bad_gold`. Raises RewardError where no worker can judge."""
        return await self._workers.run(lambda process: judge(process, golds, text, self._timeout))

    def close(self) -> None:
        """End the workers now."""
        self._workers.close()
