"""Numbers and durations for people."""

from __future__ import annotations

import math
from collections.abc import Mapping

CONDITIONS = {"none": "without tools", "shuffled": "shuffled answers", "failing": "failing tools"}
"""Of an ablation, with their titles."""
ABLATION_NOTE = (
    "[]: 95 % interval, ±: standard error, both clustered by task. benefit: with tools minus this row, paired by task"
)
UNCERTAINTY = ("/stderr", "/interval/low", "/interval/high")
"""Endings of metrics that tell how sure another metric is."""


def format_number(value: float) -> str:
    """A number in about four significant digits."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        return f"{value:.2e}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}"


def format_metric(metrics: Mapping[str, float], name: str) -> str:
    """Format a metric: `0.843 [0.795, 0.881]` with a confidence interval, `0.843 ± 0.021` with a standard error."""
    shown, error = format_number(metrics[name]), metrics.get(f"{name}/stderr")
    low, high = (metrics.get(f"{name}/interval/{end}") for end in ("low", "high"))
    if low is not None and high is not None:
        return f"{shown} [{low:.3f}, {high:.3f}]"
    return shown if error is None else f"{shown} ± {format_number(error)}"


def measured(name: str) -> str:
    """The metric that a metric's standard error, or an end of its confidence interval, belongs to; else the name."""
    return next((name.removesuffix(ending) for ending in UNCERTAINTY if name.endswith(ending)), name)


def ablation_rows(metrics: Mapping[str, float]) -> list[list[str]]:
    """A header and a row for each condition, with standard errors, and 95 % confidence intervals of the benefit."""

    def cell(name: str) -> str:
        if f"{name}/low" in metrics:
            return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*(metrics[name + end] for end in ("", "/low", "/high")))
        return format_metric(metrics, name) if name in metrics else ""

    shown = [name for name in ("accuracy", "reward/mean") if name in metrics]
    benefits = [name for name in shown if any(f"/benefit/{name}" in key for key in metrics)]  # Not of one task.
    columns = [*shown, "calls/mean", *(f"benefit/{name}" for name in benefits)]
    titles = {"": "with tools"} | {f"ablation/{name}/": title for name, title in CONDITIONS.items()}
    rows = [[title, *(cell(prefix + name) for name in columns)] for prefix, title in titles.items()]
    return [["", *columns], *(row for row in rows if any(row[1:]))]


def format_duration(seconds: float) -> str:
    """Seconds as `1 h 02 min`, `3 min 20 s` or `4.2 s`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
