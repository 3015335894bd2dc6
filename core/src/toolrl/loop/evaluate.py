"""Evaluation: k episodes of each held-out task, at the evaluation's temperature."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from toolrl.config.model import EvaluationConfig
from toolrl.loop.metrics import episode_metrics, error_metrics, pass_metrics
from toolrl.protocols import TaskSource, iterate
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.source import SamplesRounds
from toolrl.runs.status import RunPhase
from toolrl.types import Group, Task


@dataclass
class Evaluator:
    """Evaluates whatever the runner's engine serves now."""

    runner: SamplesRounds
    source: TaskSource
    limits: Limits
    config: EvaluationConfig
    phase: RunPhase = field(default_factory=RunPhase)

    def tasks(self) -> list[Task]:
        """The tasks that every evaluation of this run uses."""
        return list(islice(iterate(self.source), self.config.tasks))

    async def run(self, step: int) -> dict[str, float]:
        """Metrics of one evaluation: those of a step's episodes, `avg@k` and `pass@k`, and standard errors."""
        started = time.perf_counter()
        metrics = self.metrics(await self.groups(step))
        return {**metrics, "time/eval": time.perf_counter() - started}

    async def groups(self, step: int) -> list[Group]:
        """The episodes of one evaluation."""
        sampling = {name: getattr(self.config, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        limits, k = self.limits.at(**sampling, keep_masks=False), self.config.episodes_per_task
        tasks = self.tasks()
        with self.phase.during(f"evaluating, step {step}", len(tasks) * k):
            return await self.runner.run(tasks, k, limits, round_id=f"eval-{step}", training=False)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Those of `run` without its time."""
        k = self.config.episodes_per_task
        return {**episode_metrics(groups, evaluation=True), **pass_metrics(groups, k), **error_metrics(groups, k)}
