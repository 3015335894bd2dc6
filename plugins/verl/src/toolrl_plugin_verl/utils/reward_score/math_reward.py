r"""Scores an answer to a problem of MATH: the last `\boxed{}`, compared as text by the rules of its authors."""

from __future__ import annotations

from typing import Any

from mathruler import math_normalize  # type: ignore[import-untyped]

from toolrl_plugin_verl.utils.reward_score.geo3k import in_braces

_REPLACED = (
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
)  # fmt: skip
"""Applied in this order."""


def compute_score(solution_str: str, ground_truth: Any) -> float:
    """1.0 for the right answer, else 0.0."""
    if "\\boxed " in solution_str:
        answer: str | None = solution_str.rpartition("\\boxed ")[2].partition("$")[0]
    else:
        answer = in_braces(solution_str) if solution_str.rpartition("\\boxed")[2].startswith("{") else None
    return float(answer is not None and is_equiv(answer, str(ground_truth)))


def is_equiv(str1: str, str2: str) -> bool:
    """Whether two answers are the same text, without what differs in writing alone."""
    try:
        return strip_string(str1) == strip_string(str2)
    except Exception:  # noqa: BLE001 - what the library can't read is compared as it is
        return str1 == str2


def strip_string(text: str) -> str:
    r"""An answer without what differs in writing alone. mathruler's own `_strip_string` drops a bare `%`, which verl
    keeps: 5 isn't `5%` there, but it is `5\%`. Raises what its helpers raise for text that they can't read."""
    for before, after in _REPLACED:
        text = text.replace(before, after)
    text = math_normalize._remove_right_units(text).replace("\\\\%", "").replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = "0" + text if text[0] == "." else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:  # a name, `k = 5`
        text = sides[1]
    text = math_normalize._fix_fracs(math_normalize._fix_sqrt(text).replace(" ", ""))
    return str(math_normalize._fix_a_slash_b("\\frac{1}{2}" if text == "0.5" else text))
