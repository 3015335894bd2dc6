r"""Scores an answer to a competition problem: the last `Answer: …`, compared as text by the rules of Minerva, or
else the last `\boxed{}` as it is."""

from __future__ import annotations

import re
from typing import Any

from toolrl_plugin_verl.utils.reward_score.geo3k import in_braces

CLIP = 300
BOX_CLIP = 100
"""Characters at the end of a text that are looked at for `Answer:`, and for a box."""
INVALID = "[INVALID]"
"""The answer of a text that states none."""
_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = {
    "an ": "", "a ": "", ".$": "$", "\\$": "", r"\ ": "", " ": "", "mbox": "text", ",\\text{and}": ",",
    "\\text{and}": ",", "\\text{m}": "\\text{}",
}  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', "\\dots",
)  # fmt: skip
_FORMS = (
    (r"(.*?)\$(.*?)\$(.*)", r"$\2$"),
    (r"\\text\{(.*?)\}", r"\1"),
    (r"\\textbf\{(.*?)\}", r"\1"),
    (r"\\overline\{(.*?)\}", r"\1"),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),
    (r"sqrt([^{])", r"sqrt{\1}"),
    (r"\$", ""),
)
"""Patterns, applied in this order, of what carries no meaning and of TeX without braces."""


def normalize_final_answer(final_answer: str) -> str:
    """The answer without words, units and signs that differ in writing alone."""
    text = final_answer.rpartition("=")[2]
    for before, after in (*_REPLACED.items(), *((word, "") for word in _REMOVED)):
        text = text.replace(before, after)
    for pattern, written in _FORMS:
        text = re.sub(pattern, written, text)
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text.strip()


def compute_score(
    solution_str: str, ground_truth: Any, strict_box_verify: bool = False, **kwargs: Any
) -> dict[str, Any]:
    r"""`score` 1 or −1, `acc`, and the answer as `pred`; with `strict_box_verify` only `\boxed{}` counts."""
    text, gold = solution_str[-CLIP:], str(ground_truth)
    stated = [] if strict_box_verify else _ANSWER.findall(text)
    answer: str | None = normalize_final_answer(stated[-1]) if stated else None
    if answer is not None and answer != INVALID:
        gold = normalize_final_answer(gold)
    else:
        answer = in_braces(text[-BOX_CLIP:])
        if answer is None and not strict_box_verify:
            answer, gold = INVALID, normalize_final_answer(gold)
    return {"score": 1.0 if answer == gold else -1.0, "acc": answer == gold, "pred": answer}
