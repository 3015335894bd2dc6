r"""Scores an answer to a geometry problem: numbers with radicals, fractions and units, in `\boxed{}`.

Texts that are alike but for their writing are compared here. For all others math-verify is asked, in a process of its
own with a time limit, by the plugin `math`; a blocking call, so that a tool may make it as verl's does.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from toolrl_plugin_math import verifier
from toolrl_plugin_math.units import BOXED, question, quick_verdict

SECONDS = 5.0
"""That one answer may take to judge; then it is wrong."""
_WORKER = verifier.worker()
"""Of the whole process, started by the first answer that needs it."""
_LOCK = threading.Lock()
atexit.register(_WORKER.close)


def format_reward(predict_str: str) -> float:
    r"""1.0 where a `<think>` block is followed by a `\boxed{}`, else 0.0."""
    head, closed, tail = predict_str.partition("</think>")
    boxed = tail.find("\\boxed{")
    return float(head.startswith("<think>") and bool(closed) and boxed >= 0 and "}" in tail[boxed:])


def extract_boxed(predict_str: str) -> str | None:
    r"""What stands in the last `\boxed{}`; None where there is none."""
    return BOXED.find(predict_str)


def acc_reward(predict_str: str, ground_truth: Any, use_boxed: bool = True) -> float:
    r"""1.0 for the right answer, else 0.0. With `use_boxed` the answer is what stands in `\boxed{}`."""
    answer = extract_boxed(predict_str) if use_boxed else predict_str
    return float(answer is not None and grade_answer(answer, str(ground_truth)))


def compute_score(
    predict_str: str, ground_truth: Any, use_boxed: bool = True, format_score: float = 0.1, timeout: float = SECONDS
) -> float:
    """The right answer and the right form, the latter with the weight `format_score`. May take `timeout` seconds."""
    answer = extract_boxed(predict_str) if use_boxed else predict_str
    right = answer is not None and grade_answer(answer, str(ground_truth), timeout)
    return (1.0 - format_score) * float(right) + format_score * format_reward(predict_str)


def grade_answer(given: str, ground_truth: str, timeout: float = SECONDS) -> bool:
    """Whether two answers are the same mathematically. Blocks for `timeout` seconds at most, and the time that the
    judging process takes to start. Raises RewardError where it can't be started."""
    known = quick_verdict(given, ground_truth)
    if known is not None:
        return known
    with _LOCK:
        return verifier.judge(_WORKER, *question(given, ground_truth), timeout) == "right"
