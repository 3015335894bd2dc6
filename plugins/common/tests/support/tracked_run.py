"""A run that a tracker is told of: two training steps and an evaluation, interrupted, then resumed from step 1."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolrl.plugins.events import Events
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl_testing import make_build_context

_SAMPLES = runpy.run_path(str(Path(__file__).parents[4] / "core" / "tests" / "runs" / "conftest.py"))
build_episode: Callable[..., Any] = _SAMPLES["build_episode"]
CONFIG = {
    "model": {"path": "tiny"},
    "environments": {"default": {"tools": [{"use": "add"}]}},
    "engine": {"options": {"api_key": "sk-written-out"}},
    "seed": 3,
}


class Player:
    """Notifies an observer of a run's events, and holds what failed."""

    def __init__(self, folder: RunFolder, observer: Any, start_step: int = 0) -> None:
        folder.start_step = start_step
        self.events = Events(folder, {"tracker": observer})
        self.events.run_start()

    def train(self, step: int, reward: float) -> None:
        """A training step of two episodes; the metric `loss` isn't finite."""
        for index in range(2):
            self.events.episode_end(build_episode(index, correct=index == 0, round_id=f"train-{step}"))
        self.events.step_end(StepReport(step, "train", {"reward/mean": reward, "loss": float("nan")}))

    def evaluate(self, step: int, accuracy: float) -> None:
        """An evaluation of one episode."""
        self.events.episode_end(build_episode(9, round_id=f"eval-{step}"))
        self.events.step_end(StepReport(step, "eval", {"pass@8": accuracy}))


def play_interrupted_and_resumed(directory: Path, make_observer: Callable[[Any], Any]) -> dict[str, int]:
    """Steps 1 and 2, Ctrl-C; then, resumed from step 1, step 2 again, an evaluation, an error. Returns the observers'
    failures."""
    folder = RunFolder.create(directory, CONFIG, total_steps=3)
    first = Player(folder, make_observer(make_build_context("tracker", run_dir=directory)))
    first.train(1, 0.25)
    first.train(2, 0.5)
    first.events.run_end(KeyboardInterrupt())
    folder.config = {**CONFIG, "seed": 4}
    second = Player(folder, make_observer(make_build_context("tracker", run_dir=directory)), start_step=1)
    second.train(2, 0.75)
    second.evaluate(2, 1.0)
    second.events.run_end(ValueError("out of memory"))
    folder.close()
    return {**first.events.failures, **second.events.failures}
