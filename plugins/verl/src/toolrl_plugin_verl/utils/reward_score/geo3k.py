r"""Scores an answer to a geometry problem: numbers with radicals, fractions and units, in `\boxed{}`.

Texts that are alike but for their writing are compared here. For all others math-verify is asked, in a process of its
own with a time limit, by the plugin `math`; a blocking call, so that a tool may make it as verl's does.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any

from toolrl.parsing.flags import EndFlags
from toolrl_plugin_math import verifier

SECONDS = 5.0
"""That one answer may take to judge; then it is wrong."""
LONGEST = 1000
"""Characters of an answer; a longer one is wrong."""
_UNITS = re.compile(
    r"(?<=[\d)}])\s*(?:\\text\{[^{}]*\}|\\circ|\^\\circ|\^\{\\circ\}|°|degrees?|units?|square units?|sq\.? ?units?|"
    r"(?:mm|cm|km|ft|feet|in|inches|yards?|yd|miles?|mi|meters?|m)(?:\^?\{?[23]\}?)?)\s*\Z"
)
_BOXED = EndFlags(("boxed",))


def format_reward(predict_str: str) -> float:
    r"""1.0 where a `<think>` block is followed by a `\boxed{}`, else 0.0."""
    head, closed, tail = predict_str.partition("</think>")
    boxed = tail.find("\\boxed{")
    return float(head.startswith("<think>") and bool(closed) and boxed >= 0 and "}" in tail[boxed:])


def extract_boxed(predict_str: str) -> str | None:
    r"""What stands in the last `\boxed{}`; None where there is none."""
    return _BOXED.find(predict_str)


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
    known = quick_grade(given, ground_truth)
    return _JUDGE.judge(*question(given, ground_truth), timeout) == "right" if known is None else known


def quick_grade(given: str, ground_truth: str) -> bool | None:
    """The same, as far as comparing texts and plain numbers can tell; None where mathematics is needed."""
    said, gold = _bare(given), _bare(ground_truth)
    if said == gold:
        return bool(gold)
    if not said or not gold or len(said) > LONGEST:
        return False
    numbers = _number(said), _number(gold)
    return None if None in numbers else numbers[0] == numbers[1]


def question(given: str, ground_truth: str) -> tuple[list[str], str]:
    """What math-verify is asked: the right answers, and the text that gives one."""
    return [_bare(ground_truth)], f"\\boxed{{{_bare(given)}}}"


def _bare(text: str) -> str:
    """Without dollar signs, a box, a unit and white space around."""
    text = text.strip()
    boxed = extract_boxed(text)
    text = (boxed if boxed is not None else text).strip().strip("$").strip()
    return _UNITS.sub("", text).strip() if len(text) <= LONGEST else text


def _number(text: str) -> float | None:
    plain = text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text) else text
    return float(plain) if re.fullmatch(r"-?\d{1,300}(?:\.\d{1,300})?|-?\.\d{1,300}", plain) else None


class _Judge:
    """One worker process for the whole process, started by the first answer that needs it."""

    def __init__(self) -> None:
        self._worker = verifier.worker()
        self._lock = threading.Lock()
        weakref.finalize(self, self._worker.close)

    def judge(self, golds: list[str], text: str, timeout: float) -> str:
        with self._lock:
            return verifier.judge(self._worker, golds, text, timeout)


_JUDGE = _Judge()
