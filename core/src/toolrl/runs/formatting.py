"""Numbers and durations for people."""

from __future__ import annotations

import math
from collections.abc import Mapping


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
    """A metric, as `0.843 ± 0.021` where it has a standard error."""
    shown, error = format_number(metrics[name]), metrics.get(f"{name}/stderr")
    return shown if error is None else f"{shown} ± {format_number(error)}"


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
