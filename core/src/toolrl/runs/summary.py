"""summary.json: how a run ended, and its metrics in short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from toolrl.runs.files import plain_float
from toolrl.runs.metrics import MetricsLine

Status = Literal["running", "finished", "interrupted", "failed"]

HIGHER_IS_BETTER = ("accuracy", "reward/mean", "avg@", "pass@", "calls/success")
"""Names, and beginnings of names, of metrics that have a best value."""


def has_best(name: str) -> bool:
    """Whether the highest value of this metric is its best."""
    name = name if not name.endswith("/stderr") else ""
    return any(name == known or (known.endswith("@") and name.startswith(known)) for known in HIGHER_IS_BETTER)


def summarise(lines: Sequence[MetricsLine]) -> dict[str, dict[str, dict[str, Any]]]:
    """By kind and metric: `first`, `last`, the steps they are of, and `best` with its step where a metric has one."""
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line.step):
        of_kind = summary.setdefault(line.kind, {})
        for name, value in line.metrics.items():
            entry = of_kind.setdefault(name, {"first": plain_float(value), "first_step": line.step})
            entry.update(last=plain_float(value), last_step=line.step)
            better = math.isfinite(value) and value > entry.get("best", -math.inf)
            if has_best(name) and better:
                entry.update(best=value, best_step=line.step)
    return summary


def status_of(error: BaseException | None) -> Status:
    """The status of a run that ended so."""
    if error is None:
        return "finished"
    import asyncio

    stopped = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)
    return "interrupted" if isinstance(error, stopped) else "failed"


def describe_error(error: BaseException) -> dict[str, str]:
    """An error's type and message, as the summary keeps them."""
    return {"type": type(error).__name__, "message": str(error)}
