"""The best checkpoint of a run: which one it is, and by which metric.

    checkpoints/best.json    step, metric and value
    checkpoints/best         a link to the checkpoint's folder, where the file system knows links

The record is replaced by one rename, after its checkpoint stands and before an older one is deleted: at any moment it
names a checkpoint that is there.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from toolrl.errors import CheckpointError, ConfigError
from toolrl.runs.files import write_atomic

RECORD = "best.json"
LINK = "best"


@dataclass(frozen=True)
class Best:
    """A step, and what it was found best by."""

    step: int
    metric: str
    """Of an evaluation; higher is better."""
    value: float

    @property
    def name(self) -> str:
        """Its folder's."""
        return f"step-{self.step:06d}"


def better(best: Best | None, step: int, metric: str, metrics: Mapping[str, float]) -> Best | None:
    """The step as the new best, or None where the old one is as good. The start of a run is in no checkpoint and never
    best. Raises ConfigError where the evaluation doesn't have the metric."""
    if metric not in metrics:
        raise ConfigError(f"trainer.keep_best: an evaluation gives no {metric!r}, but {', '.join(sorted(metrics))}")
    value = metrics[metric]
    if step == 0 or not math.isfinite(value) or (best is not None and value <= best.value):
        return None
    return Best(step, metric, value)


def write_best(directory: Path, best: Best | None) -> None:
    """Put the record and the link in the place of older ones; with None take both away. Raises OSError."""
    link, record = directory / LINK, directory / RECORD
    if best is None:
        record.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
        return
    write_atomic(record, json.dumps(asdict(best)) + "\n")
    linked = directory / f".{LINK}.tmp"
    with contextlib.suppress(OSError):  # not every file system has links; the record says it too
        linked.unlink(missing_ok=True)
        linked.symlink_to(best.name)
        linked.replace(link)


def read_best(directory: Path) -> Best | None:
    """The record; None where there is none. Raises CheckpointError for one that can't be read."""
    file = directory / RECORD
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Best(int(found["step"]), str(found["metric"]), float(found["value"]))
    except FileNotFoundError:
        return None
    except OSError as error:  # It may pass: too many open files, a file system that is away.
        raise CheckpointError(f"the record of the best checkpoint can't be read: {error}", where=str(file)) from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"the record of the best checkpoint can't be read: {type(error).__name__}: {error}",
            where=str(file),
            hint="Delete it; `--resume` with trainer.keep_best begins anew with the next evaluation.",
        ) from error
