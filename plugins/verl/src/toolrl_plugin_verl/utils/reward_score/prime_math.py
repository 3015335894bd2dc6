"""Scores an answer to a problem of Numina: what the text states last, as mathruler grades it or as a number.

verl has sympy read what neither decides, which runs the model's text as code; here such an answer is wrong.
"""

from __future__ import annotations

import math
from typing import Any

from toolrl_plugin_verl.utils.reward_score.geo3k import SECONDS, grade_answer, in_braces

_BEFORE = ("answer:", "answer is", "answers are")
_AFTER = ("is answer", "is the answer", "are answers", "are the answers")
_STATED = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
_TOLERANCE = 1e-4


def match_answer(response: str) -> str:
    """The part of a text that states its answer; the whole text where nothing marks one."""
    response = _cut(response, _BEFORE)
    for marker in _AFTER:
        if (at := response.lower().rfind(marker)) >= 0:
            response = response[:at].strip()
    opening = "\\boxed{" if "\\boxed" in response else "\\fbox{"
    response = (in_braces(response, opening) or "").strip() or response
    if ". " in response:
        response = response.rpartition(". ")[0].strip()
    return _cut(response, _STATED)


def compute_score(model_output: Any, ground_truth: Any, timeout: float = SECONDS) -> tuple[bool, bool, str]:
    """Whether the answer is right, whether the text has verl's form, and the answer. May take `timeout` seconds."""
    text, gold = str(model_output), str(ground_truth)
    answer = match_answer(text)
    if grade_answer(answer, gold, timeout):
        return True, True, answer
    return _equal_numbers(answer, gold), "Step 2:" in text and "\\box" in text, answer


def _cut(text: str, markers: tuple[str, ...]) -> str:
    for marker in markers:
        if (at := text.lower().rfind(marker)) >= 0:
            text = text[at + len(marker) :].strip()
    return text


def _equal_numbers(answer: str, gold: str) -> bool:
    """Whether two numbers are about equal, or one is the other as a percentage."""
    try:
        given, right = (float(text.lstrip("$").rstrip("%").rstrip("\\").replace(",", "")) for text in (answer, gold))
    except ValueError:
        return False
    return any(math.isclose(right * factor, given, rel_tol=_TOLERANCE) for factor in (0.01, 1, 100))
