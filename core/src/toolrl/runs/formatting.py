"""Numbers and durations for people."""

from __future__ import annotations

import math


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
