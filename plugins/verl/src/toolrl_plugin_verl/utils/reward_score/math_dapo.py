r"""Scores an answer to a competition problem: the last `Answer: …`, or else `\boxed{}`.

Answers compare as mathematics (`geo3k.grade_answer`), where verl normalises and compares their texts.
"""

from __future__ import annotations

import re
from typing import Any

from toolrl_plugin_verl.utils.reward_score import geo3k

CLIP = 300
"""Characters at the end of a text that are looked at for `Answer:`."""
_ANSWER = re.compile(r"answer[ \t*]*:[ \t*]*([^\n]+)", re.IGNORECASE)


def extract_answer(solution_str: str) -> str | None:
    """The answer that a solution gives; None where it gives none."""
    said = _ANSWER.findall(solution_str[-CLIP:])
    if not said:
        return geo3k.extract_boxed(solution_str)
    text: str = said[-1].strip().strip("*").rstrip(".").strip()
    boxed = geo3k.extract_boxed(text)
    return boxed if boxed is not None else text


def compute_score(
    solution_str: str, ground_truth: Any, strict_box_verify: bool = False, **kwargs: Any
) -> dict[str, Any]:
    r"""`score` 1 or −1, `acc`, and `pred`, the answer that was found; with `strict_box_verify` only `\boxed{}` counts.
    May block for some seconds."""
    said = geo3k.extract_boxed(solution_str) if strict_box_verify else extract_answer(solution_str)
    right = said is not None and geo3k.grade_answer(said, str(ground_truth))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": said}
