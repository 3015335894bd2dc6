"""Standard errors of means over episodes: tasks are a random sample, episodes of one task aren't independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

Clusters = Sequence[Sequence[float]]
"""The values of each task's episodes; a task may have none."""
_Z95 = 1.959963984540054


def standard_error(values: Clusters, baseline: Clusters | None = None) -> float | None:
    """Of the mean of all values, clustered by task; with a `baseline` of the same tasks in their order, of the
    difference of the two means, paired by task. None where fewer than two tasks have values.

    sqrt(C / (C − 1) · Σ_c (Σ_i (x_ci − x̄) / n)²), of C tasks with n values in all: Miller, arXiv 2411.00640, section
    2.2, with the correction for few clusters. With one value a task it is the standard deviation over sqrt(n).
    """
    parts = zip(_deviations(values), _deviations(baseline or [()] * len(values)), strict=True)
    tasks = sum(bool(own or other) for own, other in zip(values, baseline or values, strict=True))
    return None if tasks < 2 else math.sqrt(tasks / (tasks - 1) * math.fsum((own - other) ** 2 for own, other in parts))


def paired_difference(values: Clusters, baseline: Clusters) -> dict[str, float] | None:
    """`value`, the difference of two means of the same tasks, its `stderr`, and `low` and `high`, the ends of its 95 %
    confidence interval. None where fewer than two tasks have values."""
    error = standard_error(values, baseline)
    if error is None or not any(values) or not any(baseline):
        return None
    value = fmean(chain.from_iterable(values)) - fmean(chain.from_iterable(baseline))
    return {"value": value, "stderr": error, "low": value - _Z95 * error, "high": value + _Z95 * error}


def _deviations(values: Clusters) -> list[float]:
    """What each task adds to the error of the mean."""
    count = sum(map(len, values)) or 1
    mean = math.fsum(value for task in values for value in task) / count
    return [math.fsum(value - mean for value in task) / count for task in values]
