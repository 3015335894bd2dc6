"""Evaluation: k episodes of each held-out task, at the evaluation's temperature."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

from toolrl.config.model import EvaluationConfig
from toolrl.loop.metrics import episode_metrics, pass_metrics
from toolrl.protocols import TaskSource, iterate
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import SamplesRounds
from toolrl.types import Task


@dataclass
class Evaluator:
    """Evaluates whatever the runner's engine serves now."""

    runner: SamplesRounds
    source: TaskSource
    limits: Limits
    config: EvaluationConfig

    def tasks(self) -> list[Task]:
        """The tasks that every evaluation of this run uses."""
        return list(islice(iterate(self.source), self.config.tasks))

    async def run(self, step: int) -> dict[str, float]:
        """Metrics of one evaluation: those of a step's episodes, `avg@k` and `pass@k`."""
        started = time.perf_counter()
        sampling = {name: getattr(self.config, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        limits = self.limits.at(**sampling)
        groups = await self.runner.run(
            self.tasks(), self.config.episodes_per_task, limits, round_id=f"eval-{step}", training=False
        )
        metrics = {**episode_metrics(groups, evaluation=True), **pass_metrics(groups, self.config.episodes_per_task)}
        return {**metrics, "time/eval": time.perf_counter() - started}
