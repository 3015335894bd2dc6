"""Curves and headline numbers of a run, from its metrics alone.

A curve is thinned to what a screen can show: beyond `MAX_POINTS`, each point is the mean of a run of steps. Values that
aren't finite become None, so that a chart can mark the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolrl.runs.formatting import UNCERTAINTY
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_report.charts import Unit

MAX_POINTS = 1000

HEADLINES: tuple[tuple[str, str, Unit], ...] = (
    ("accuracy", "Accuracy", "share"),
    ("reward/mean", "Reward", ""),
    ("calls/mean", "Calls per episode", ""),
    ("usage/cost", "Cost", ""),
)
"""Metric, title and unit of the numbers at the top of a report."""


@dataclass(frozen=True)
class Headline:
    """A metric's way from a run's start to its end."""

    title: str
    unit: Unit
    kind: str
    start: float
    end: float
    best: float
    best_step: int
    width: int
    """Start and end are means over so many reports; 1 for evaluations."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """The standard error and the interval of the end, by `formatting.UNCERTAINTY`; only of evaluations."""
    count: int = 2
    """Reports that the metric is in."""


def curves(lines: Sequence[MetricsLine]) -> dict[str, dict[str, list[list[float | None]]]]:
    """By kind and metric: [steps, values]."""
    found: dict[str, dict[str, list[list[float | None]]]] = {}
    stops = {(line.kind, name) for line in lines for name in line.metrics if name.startswith("stop/")}
    for line in sorted(lines, key=lambda line: line.step):
        for name, value in {**_absent_stops(line, stops), **line.metrics}.items():
            steps, values = found.setdefault(line.kind, {}).setdefault(name, [[], []])
            steps.append(line.step)
            values.append(float(f"{value:.6g}") if math.isfinite(value) else None)
    return {
        kind: {name: _thin(steps, values) for name, (steps, values) in metrics.items()}
        for kind, metrics in found.items()
    }


def _absent_stops(line: MetricsLine, stops: set[tuple[str, str]]) -> dict[str, float]:
    """Zeros for the reasons that ended no episode of this step: a step names only those that did."""
    if not any(name.startswith("stop/") for name in line.metrics):
        return {}
    return {name: 0.0 for kind, name in stops if kind == line.kind}


def _thin(steps: list[float | None], values: list[float | None]) -> list[list[float | None]]:
    size = math.ceil(len(steps) / MAX_POINTS)
    if size <= 1:
        return [steps, values]
    thin: list[list[float | None]] = [[], []]
    for start in range(0, len(steps), size):
        finite = [value for value in values[start : start + size] if value is not None]
        thin[0].append(steps[min(start + size, len(steps)) - 1])
        thin[1].append(float(f"{sum(finite) / len(finite):.6g}") if finite else None)
    return thin


def headlines(lines: Sequence[MetricsLine]) -> list[Headline]:
    """The numbers at the top: from evaluations where the run has two or more, else from its training steps."""
    found = []
    for metric, title, unit in HEADLINES:
        by_kind: dict[str, list[tuple[int, float]]] = {}
        errors: dict[str, dict[str, float]] = {}
        for line in sorted(lines, key=lambda line: line.step):
            value = line.metrics.get(metric, math.nan)
            if math.isfinite(value):
                by_kind.setdefault(line.kind, []).append((line.step, value))
                errors[line.kind] = {it: line.metrics[metric + it] for it in UNCERTAINTY if metric + it in line.metrics}
        if not by_kind:
            continue
        most = max(by_kind, key=lambda kind: len(by_kind[kind]))
        kind = "eval" if len(by_kind.get("eval", ())) >= 2 else most
        points = by_kind[kind]
        width = 1 if kind == "eval" else max(1, min(10, len(points) // 5))
        values = [value for _, value in points]
        start, end = sum(values[:width]) / width, sum(values[-width:]) / width
        best_step, best = max(points, key=lambda point: point[1])
        found.append(Headline(title, unit, kind, start, end, best, best_step, width, errors[kind], len(points)))
    return found
