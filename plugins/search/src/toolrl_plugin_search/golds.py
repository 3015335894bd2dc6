"""The answers of a task that count as right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.errors import RewardError
from toolrl.types import Task


def gold_answers(task: Task) -> list[str]:
    """The answers that count: the task's answer, each of a list, or those of Search-R1's `{"target": …}`. Raises
    RewardError where there is none."""
    answer: Any = task.answer
    if isinstance(answer, Mapping):
        answer = answer.get("target")
    several = isinstance(answer, Sequence) and not isinstance(answer, str)
    given = [str(item) for item in (answer if several else [answer]) if item is not None]
    golds = [gold for gold in given if gold.strip()]
    if not golds:
        raise RewardError(
            f"task {task.id!r} has no answer to compare with",
            hint="Give its row an answer; the data set `search_r1` reads `golden_answers`.",
        )
    return golds
