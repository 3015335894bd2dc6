r"""Scores an answer to a geometry problem in `\boxed{}`, as mathruler grades it, and its form.

mathruler runs in processes of its own with a time limit; a blocking call, so that a tool may make it as verl's does.
"""

from __future__ import annotations

import atexit
import queue
import re
from typing import Any

from toolrl.errors import RewardError
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl_common.workers import RestartingWorker, WorkerError

SECONDS = 5.0
"""That one answer may take to grade; then it is wrong."""
WORKERS = 2
BOXED = "\\boxed{"
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_idle: queue.LifoQueue[RestartingWorker] = queue.LifoQueue()
"""The processes, each started by the first answer that needs it."""
for _worker in [RestartingWorker("toolrl_plugin_verl.mathruler_worker") for _ in range(WORKERS)]:
    atexit.register(_worker.close)
    _idle.put(_worker)


def format_reward(predict_str: str) -> float:
    r"""1.0 where a `<think>` block is followed by a `\boxed{}`, else 0.0."""
    head, closed, tail = predict_str.partition("</think>")
    _, boxed, rest = tail.partition(BOXED)
    return float(head.startswith("<think>") and bool(closed and boxed) and "}" in rest)


def acc_reward(predict_str: str, ground_truth: Any, use_boxed: bool = True, timeout: float = SECONDS) -> float:
    r"""1.0 for the right answer, else 0.0. With `use_boxed` the answer is what stands in the last `\boxed{}`."""
    answer = in_braces(predict_str) if use_boxed else predict_str
    return float(grade_answer("None" if answer is None else answer.strip(), str(ground_truth), timeout))


def compute_score(
    predict_str: str, ground_truth: Any, use_boxed: bool = True, format_score: float = 0.1, timeout: float = SECONDS
) -> float:
    """The right answer and the right form, the latter with the weight `format_score`. May take `timeout` seconds."""
    right = acc_reward(predict_str, ground_truth, use_boxed, timeout)
    return (1.0 - format_score) * right + format_score * format_reward(predict_str)


def in_braces(text: str) -> str | None:
    r"""What stands after the last `\boxed{`, up to its brace; None where there is none, or it isn't closed."""
    _, found, rest = text.rpartition(BOXED)
    depth = 1
    for end, character in enumerate(rest if found else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[:end]
    return None


def grade_answer(given: str, ground_truth: str, timeout: float = SECONDS) -> bool:
    """Whether two answers are the same to mathruler. Blocks for `timeout` seconds at most, and the time that a process
    takes to start. Raises RewardError where none can be started."""
    if given == ground_truth:
        return True
    if _WHOLE.fullmatch(given) and _WHOLE.fullmatch(ground_truth):
        return int(given) == int(ground_truth)
    worker = _idle.get()
    try:
        return bool(worker.ask({"given": given, "ground_truth": ground_truth}, timeout)["right"])
    except ProcessCrashError:  # killed at the deadline, or died of the answer
        return False
    except WorkerError as error:
        raise RewardError(f"mathruler can't grade the answer: {error}") from None
    finally:
        _idle.put(worker)
