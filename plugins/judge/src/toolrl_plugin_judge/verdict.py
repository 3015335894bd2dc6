"""Verdicts: what the judge is asked to answer with, and reading it strictly.

A reply is read as a whole: what a judge quotes from the response is never taken for its verdict. Whatever doesn't have
the form, or lies outside of the scale, is unreadable; nothing is guessed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolrl_plugin_judge.options import JudgeOptions

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(?P<inside>.*)\n```", re.DOTALL)
_THOUGHT = "</think>"


class UnreadableVerdictError(ValueError):
    """A reply that is no verdict."""


def format_text(options: JudgeOptions) -> str:
    """The instruction on the form of the judge's answer."""
    low, high = options.scale
    number = f"a number from {low:g} (worst) to {high:g} (best)"
    return f'Answer with one JSON object and nothing else: {{"reasons": "<a few sentences>", "score": <{number}>}}'


def read_verdict(reply: str, options: JudgeOptions) -> float:
    """The score of a reply, on its scale. Raises UnreadableVerdictError."""
    text = reply.rpartition(_THOUGHT)[2].strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced["inside"] if fenced else text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableVerdictError(f"it isn't one JSON object: {str(error)[:80]}: {text[:120]!r}") from None
    score = found.get("score") if isinstance(found, dict) else None
    low, high = options.scale
    if isinstance(score, bool) or not isinstance(score, int | float) or not low <= score <= high:
        raise UnreadableVerdictError(f"its score isn't a number from {low:g} to {high:g}: {text[:120]!r}")
    return float(score)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
