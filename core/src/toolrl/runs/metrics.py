"""metrics.jsonl: one line for each step's report.

A line holds `step`, `kind`, `time` (seconds since the epoch) and `episodes` (how many the step stored), then the step's
metrics under their own names. Numbers that aren't finite are written as the strings "nan", "inf" and "-inf", so that
every line is JSON to every reader. `summary.json` has them in short, and how a run ended.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolrl.errors import DataError
from toolrl.protocols import StepReport
from toolrl.runs.formatting import UNCERTAINTY
from toolrl.runs.files import json_line, naming, open_regular, plain_float, read_lines, write_atomic

RESERVED = ("step", "kind", "time", "episodes")
_OLD_NAMES = {"stop/no_call": "stop/final"}
"""Names in older files, with the present ones."""


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl."""

    step: int
    kind: str
    time: float
    """Seconds since the epoch."""
    episodes: int
    """Episodes that were stored with this step."""
    metrics: dict[str, float] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        record = {name: plain_float(value) for name, value in self.metrics.items() if name not in RESERVED}
        return {"step": self.step, "kind": self.kind, "time": self.time, "episodes": self.episodes, **record}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> MetricsLine:
        metrics = {_OLD_NAMES.get(name, name): float(it) for name, it in record.items() if name not in RESERVED}
        return cls(int(record["step"]), str(record["kind"]), float(record["time"]), int(record["episodes"]), metrics)


class MetricsLog:
    """The file, and which steps it holds. One object writes a file at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: set[tuple[int, str]] | None = None
        self._waiting: list[MetricsLine] = []
        """Not on the disk yet."""

    def read(self) -> list[MetricsLine]:
        """All lines in the order they were written; none where there is no file yet."""
        if not self.path.exists():
            return []
        with open_regular(self.path) as file:
            records = list(read_lines(file, str(self.path)))
        try:
            return [MetricsLine.from_record(record) for record in records]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"a line isn't a step's metrics: {error!r}", where=str(self.path)) from error

    def append(self, report: StepReport, episodes: int = 0) -> MetricsLine:
        """Add a step's line and put it on the disk. A step that the file holds already is replaced. Where this raises,
        the line is kept and written with the next."""
        line = MetricsLine(report.step, report.kind, time.time(), episodes, dict(report.metrics))
        self._waiting.append(line)
        self.write_waiting()
        return line

    def write_waiting(self) -> None:
        """Write the lines that the disk had no room for, if there are any."""
        if not self._waiting:
            return
        new = {(line.step, line.kind): line for line in self._waiting}
        if self._keys is None:
            # What an earlier process or a full disk left may end in a torn line: rewriting drops it.
            self._rewrite(self.read())
        assert self._keys is not None
        if new.keys() & self._keys:
            self._rewrite(old for old in self.read() if (old.step, old.kind) not in new)
        keys, self._keys = self._keys, None  # Unknown until all of it is on the disk.
        with naming(self.path), self.path.open("ab") as file:
            file.write(b"".join(json_line(line.to_record()) for line in new.values()))
            file.flush()
            os.fsync(file.fileno())
        self._keys = keys | new.keys()
        self._waiting.clear()

    def rewind(self, step: int) -> None:
        """Drop the lines of later steps."""
        self._rewrite(line for line in self.read() if line.step <= step)

    def _rewrite(self, lines: Iterable[MetricsLine]) -> None:
        kept = list(lines)
        write_atomic(self.path, b"".join(json_line(line.to_record()) for line in kept))
        self._keys = {(line.step, line.kind) for line in kept}


# In short, and how a run ended: summary.json.

Status = Literal["running", "finished", "interrupted", "failed"]

HIGHER_IS_BETTER = ("accuracy", "reward/mean", "avg@", "pass@", "calls/success")
"""Names, and beginnings of names, of metrics that have a best value."""


def has_best(name: str) -> bool:
    """Whether the highest value of this metric is its best."""
    if name.endswith(UNCERTAINTY):
        return False
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
