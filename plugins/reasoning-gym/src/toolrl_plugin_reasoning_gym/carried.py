"""The columns of a task that say which generator made it."""

from __future__ import annotations

from typing import Any

from toolrl.errors import RewardError
from toolrl.types import Task


def carried_by(task: Task) -> dict[str, Any]:
    """Generator, config and index of a task. Raises RewardError for a task that has none."""
    carried = task.extra.get("reasoning_gym")
    carried = carried if isinstance(carried, dict) else {}
    if not isinstance(carried.get("generator"), str) or not isinstance(carried.get("index"), int):
        raise RewardError(
            f"task {task.id!r} has no `reasoning_gym` with `generator` and `index` among its extra columns",
            hint="The reward `reasoning_gym` scores tasks of the data set `reasoning_gym`.",
        )
    return {"generator": carried["generator"], "config": carried.get("config") or {}, "index": carried["index"]}
