"""Plays a run's events to the observer `console`: python played_run.py FOLDER. It stops within step 3 until
there is a file `go-on`."""

from __future__ import annotations

import logging
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolrl.plugins.events import Events
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.recorder import RunRecorder
from toolrl.runs.status import RunPhase
from toolrl_plugin_console.observer import ConsoleObserver
from toolrl_plugin_console.options import ConsoleOptions

_SAMPLES = runpy.run_path(str(Path(__file__).parents[4] / "core" / "tests" / "runs" / "conftest.py"))
build_episode: Callable[..., Any] = _SAMPLES["build_episode"]
CONFIG = {"data": {"train": {"use": "jsonl"}, "eval": {"use": "jsonl"}}}


def play(
    directory: Path,
    observer: ConsoleObserver,
    *,
    start: int = 0,
    within_step_3: Callable[[], object] = lambda: None,
    more: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Four steps of four episodes, from `start` on, between two evaluations of two. The reward rises. What
    `within_step_3` raises ends the run. `more` are metrics of each step."""
    folder = RunFolder.create(directory, CONFIG, total_steps=4, resume=bool(start))
    if start:
        folder.rewind(start)
    events = Events(folder, {"run folder": RunRecorder(folder), "console": observer})
    phase = RunPhase(events.phase_start)
    phase.begin("starting the engine and the tools")
    events.run_start()
    end = None
    try:
        _steps(events, phase, start, within_step_3, more)
        checkpoint = directory / "checkpoints" / "step-000004"
        checkpoint.mkdir(parents=True, exist_ok=True)
        events.checkpoint_saved(4, checkpoint)
    except BaseException as error:  # noqa: BLE001 - as the end of a run is reported
        end = error
    events.run_end(end)
    assert not events.failures


def _steps(
    events: Events, phase: RunPhase, start: int, within_step_3: Callable[[], object], more: Mapping[str, float]
) -> None:
    def evaluate(step: int) -> None:
        with phase.during(f"evaluating, step {step}", 2):
            for index in range(2):
                events.episode_end(build_episode(index, round_id=f"eval-{step}"))
        events.step_end(StepReport(step, "eval", {"accuracy": 0.1 + step / 5, "accuracy/stderr": 0.02}))

    evaluate(start)
    for step in range(start + 1, 5):
        phase.begin(f"sampling, step {step}", 4)
        for index in range(4):
            if (step, index) == (3, 1):
                within_step_3()
            events.episode_end(build_episode(index, round_id=f"train-{step}"))
        phase.begin(f"updating, step {step}")
        metrics = {"accuracy": step / 10, "reward/mean": step / 10, "calls/mean": 1.5, "loss": float("nan")}
        events.step_end(StepReport(step, "train", {**metrics, "my/own": 7.0, **more}))
    evaluate(4)


def _stop() -> None:
    logging.getLogger("toolrl").warning("a warning of the run")
    print("a print of a tool")
    while not Path("go-on").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    play(Path(sys.argv[1]), ConsoleObserver(ConsoleOptions(sample_every=0)), within_step_3=_stop)
