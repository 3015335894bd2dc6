"""Evaluation: k episodes of each held-out task, at the evaluation's temperature."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolrl.config.model import EvaluationConfig
from toolrl.protocols import TaskSource, iterate
from toolrl.rollout.environment import Limits
from toolrl.rollout.runner import Runner
from toolrl.train.metrics import episode_metrics, pass_metrics
from toolrl.types import Group, Task


@dataclass
class Evaluator:
    """Evaluates whatever the runner's engine serves now."""

    runner: Runner
    source: TaskSource
    limits: Limits
    config: EvaluationConfig

    def tasks(self) -> list[Task]:
        """The tasks that every evaluation of this run uses."""
        count = len(self.source) if self.config.tasks is None else min(self.config.tasks, len(self.source))
        return [task for _, task in zip(range(count), iterate(self.source), strict=False)]

    async def run(self, step: int) -> dict[str, float]:
        """Metrics of one evaluation: those of a step's episodes, `avg@k` and `pass@k`."""
        metrics, _ = await self.episodes(step)
        return metrics

    async def episodes(self, step: int) -> tuple[dict[str, float], Sequence[Group]]:
        started = time.perf_counter()
        limits = self.limits
        if self.config.temperature is not None:
            limits = replace(limits, temperature=self.config.temperature)
        groups = await self.runner.run(
            self.tasks(), self.config.episodes_per_task, limits, round_id=f"eval-{step}", training=False
        )
        metrics = {**episode_metrics(groups), **pass_metrics(groups, self.config.episodes_per_task)}
        metrics["time/eval"] = time.perf_counter() - started
        return metrics, groups
