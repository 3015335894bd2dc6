"""Scores an answer to a grade-school problem: the number after the last `####`, compared as text."""

from __future__ import annotations

import re
from typing import Any, Literal

CLIP = 300
"""Characters at the end of a text that are looked at."""
_NUMBER = r"(-?[0-9.,]+)"


def extract_solution(solution_str: str, method: Literal["strict", "flexible"] = "strict") -> str | None:
    """The number as text; None where there is none. Only `strict` takes its commas out, as in verl."""
    text = solution_str[-CLIP:]
    if method == "strict":
        marked = re.findall(f"#### {_NUMBER}", text)
        return marked[-1].replace(",", "") if marked else None
    if method != "flexible":
        raise ValueError(f"method is {method!r}, expected 'strict' or 'flexible'")
    found = re.findall(_NUMBER, text)
    return next((number for number in reversed(found) if number != "."), found[0] if found else None)


def compute_score(
    solution_str: str,
    ground_truth: Any,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right number, `format_score` for a wrong one, 0 for none."""
    answer = extract_solution(solution_str, method)
    if answer is None:
        return 0
    return score if answer == str(ground_truth) else format_score
