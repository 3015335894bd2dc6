"""Verdicts: what the judge is asked to answer with, and reading it strictly.

A reply is read as a whole: what a judge quotes from the response is never taken for its verdict. Whatever doesn't have
the form, or lies outside of the scale, is unreadable; nothing is guessed.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from toolrl_plugin_judge.options import JudgeOptions

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(?P<inside>.*)\n```", re.DOTALL)
_THOUGHT = "</think>"
_HUGE = 1e300
"""A score as large is out of any scale; a whole number may be too large for a float."""
TOTAL = "score"


class UnreadableVerdictError(ValueError):
    """A reply that is no verdict."""


def format_text(options: JudgeOptions) -> str:
    """The instruction on the form of the judge's answer."""
    low, high = (f"{bound:g}" for bound in options.scale)
    number = f"a number from {low} (worst) to {high} (best)"
    if not options.criteria:
        return f'Answer with one JSON object and nothing else: {{"reasons": "<a few sentences>", "score": <{number}>}}'
    names = ", ".join(f'"{it.name}": <number>' for it in options.criteria)
    return (
        f"Score each criterion with {number}. Answer with one JSON object and nothing else: "
        f'{{"reasons": "<a few sentences>", "scores": {{{names}}}}}'
    )


def read_verdict(reply: str, options: JudgeOptions) -> dict[str, float]:
    """The scores of a reply on its scale: by criterion, or `score` alone. Raises UnreadableVerdictError."""
    found = _from_json(reply.rpartition(_THOUGHT)[2].strip(), options)
    low, high = options.scale
    for name, score in found.items():
        if not low <= score <= high:
            raise UnreadableVerdictError(f"{name} is {score:g}, which isn't between {low:g} and {high:g}")
    return found


def _from_json(text: str, options: JudgeOptions) -> dict[str, float]:
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced["inside"] if fenced else text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableVerdictError(f"it isn't one JSON object: {str(error)[:80]}: {text[:120]!r}") from None
    if not isinstance(found, dict):
        raise UnreadableVerdictError(f"it isn't a JSON object: {text[:120]!r}")
    if not options.criteria:
        return {TOTAL: _number(found.get(TOTAL), TOTAL)}
    scores = found.get("scores")
    names = {it.name for it in options.criteria}
    if not isinstance(scores, dict) or scores.keys() != names:
        raise UnreadableVerdictError(f"`scores` doesn't have exactly {sorted(names)}: {text[:120]!r}")
    return {name: _number(scores[name], name) for name in scores}


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableVerdictError(f"{name} is {value!r:.40}, expected a number")
    return float(value) if abs(value) < _HUGE else math.inf


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
