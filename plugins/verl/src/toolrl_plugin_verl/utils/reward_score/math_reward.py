r"""Scores an answer to a problem of MATH: the last `\boxed{}`, compared as text by the rules of its authors."""

from __future__ import annotations

from typing import Any

from mathruler.math_normalize import _strip_string  # type: ignore[import-untyped]

from toolrl_plugin_verl.utils.reward_score.geo3k import in_braces


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
        return bool(_strip_string(str1) == _strip_string(str2))
    except Exception:  # noqa: BLE001 - what the library can't read is compared as it is
        return str1 == str2
