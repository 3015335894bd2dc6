"""Ground truths of tasks as texts: numbers of any type, texts, and lists of those."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from toolrl.errors import RewardError
from toolrl.types import Task

MAX_DIGITS = 400
"""Digits of a number that is written out; a float has up to 324 after its point."""


def gold_texts(task: Task) -> list[str]:
    """The answers that count as right: the task's answer, or each entry of a list, as texts. Numbers are written out:
    72.0 is `72` and 3e-05 is `0.00003`. Raises RewardError if there is none, or one that no text can equal."""
    golds = [gold_text(item) for item in gold_values(task)]
    return [gold for gold in golds if gold is not None]


def gold_values(task: Task) -> list[Any]:
    """The task's answer, or the entries of a list, without nulls and blanks. Raises RewardError if nothing is left, or
    if an entry is no text, number or truth value."""
    answer = task.answer
    if hasattr(answer, "tolist") and not isinstance(answer, str):  # an array or a scalar of numpy
        answer = answer.tolist() if getattr(answer, "ndim", 0) else answer
    items = list(answer) if isinstance(answer, list | tuple | set | frozenset) else [answer]
    for item in items:
        if isinstance(item, Mapping | list | tuple | set | frozenset | bytes):
            raise RewardError(
                f"task {task.id!r}: invalid answer {answer!r:.80}; expected a text, a number, or a list of those (got "
                f"{type(item).__name__})",
                hint="Name the field that holds it with `fields: {answer: …}`. Each entry of a list counts as right.",
            )
    golds = [item for item in items if item is not None and gold_text(item) is not None]
    if not golds:
        raise RewardError(
            f"task {task.id!r} has no answer to compare with (got {task.answer!r:.80})",
            hint="Give its row an answer, or say where it is with `fields: {answer: …}`.",
        )
    return golds


def gold_text(value: Any) -> str | None:
    """A ground truth as text; None for a blank one, and for a number that is infinite or undefined."""
    if isinstance(value, str):
        return value if value.strip() else None
    number = gold_number(value)
    if number is None:
        return None if _is_number(value) else str(value)
    if abs(number.adjusted()) > MAX_DIGITS:
        return str(number)
    return str(int(number)) if number == number.to_integral_value() else format(number, "f")


def gold_number(value: Any) -> Decimal | None:
    """The exact decimal that a number prints as; None for all else, also for truth values, infinity and NaN."""
    if not _is_number(value):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:  # a fraction, a complex number
        return None
    return number if number.is_finite() else None


def _is_number(value: Any) -> bool:
    """Whether it is a float, an int or another number, of Python or numpy, that prints as a decimal."""
    if isinstance(value, bool | str):
        return False
    try:
        Decimal(str(value))
    except InvalidOperation:
        return False
    return True
