"""The observer `tensorboard`, fed a short run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import StepReport
from toolrl_plugin_report.observers import TensorboardObserver, TensorboardOptions

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


class Run:
    def __init__(self, directory: Path, start_step: int = 0) -> None:
        self.directory, self.start_step = directory, start_step


def feed(run: Any) -> None:
    observer = TensorboardObserver(TensorboardOptions())
    observer.toolrl_run_start(run)
    for step in range(run.start_step + 1, 5):
        observer.toolrl_step_end(run, StepReport(step, "train", {"accuracy": step / 10, "loss": float("nan")}))
    observer.toolrl_step_end(run, StepReport(4, "eval", {"accuracy": 0.75}))
    observer.toolrl_run_end(run, None)


def test_tensorboard_scalars_read_back(tmp_path: Path) -> None:
    feed(Run(tmp_path))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("train/accuracy")] == [
        (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4),
    ]  # fmt: skip
    assert [event.value for event in events.Scalars("eval/accuracy")] == [0.75]


def test_tensorboard_voids_the_steps_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    feed(Run(tmp_path))
    feed(Run(tmp_path, start_step=2))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/accuracy")] == [1, 2, 3, 4]
