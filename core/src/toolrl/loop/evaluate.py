"""Evaluation: k episodes of each held-out task, at the evaluation's temperature.

Does the tool help? An ablation evaluates the same tasks and seeds with the tools, and with what they give taken away.

`none` shows no tools; what their sessions open with, reply and reward stays. `shuffled` runs a call and replaces its
answer by one that the same tool gave another task with the tools, drawn by run seed, episode and call; errors stay, and
where there is no such answer, the call fails. `failing` answers calls by an error, and runs none.
"""

from __future__ import annotations

import copy
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from toolrl.config.model import EvaluationConfig
from toolrl.errors import ConfigError
from toolrl.loop.metrics import (
    episode_metrics,
    error_metrics,
    is_share,
    paired_difference,
    pass_metrics,
    values_by_task,
)
from toolrl.loop.mixture import first_tasks
from toolrl.protocols import TaskSource
from toolrl.rollouts.environment import Environment, Limits, pick_environment
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.source import SamplesRounds
from toolrl.runs.formatting import measured
from toolrl.runs.status import RunPhase
from toolrl.tools.toolbox import ToolBoxSession
from toolrl.types import Group, Task, ToolCall, ToolResult


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
        return first_tasks(self.source, self.config.tasks)

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


# Ablation.


_SHOWN = ("accuracy", "reward/mean", "calls/mean", "usage/cost")
"""Metrics of a condition."""

Answers = Mapping[str, Mapping[str, Sequence[ToolResult]]]
"""Successful ones, by tool and task."""


class WithoutTools(ToolBoxSession):
    """Shows no tools."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tools, self._specs = {}, ()


class FailingTools(ToolBoxSession):
    """Answers every call of a tool by an error."""

    async def _call(self, tool: Any, call: ToolCall) -> ToolResult:
        return ToolResult(f"The tool {call.name!r} is unavailable. Go on without it.", error="unavailable")


class ShuffledAnswers(FailingTools):
    """Answers a call by what the tool answered another task."""

    def __init__(self, opened: Any, task: Task, *more: Any, answers: Answers, seed: int, **options: Any) -> None:
        super().__init__(opened, task, *more, **options)
        self._task, self._answers, self._seed = task.id, answers, seed

    async def _call(self, tool: Any, call: ToolCall) -> ToolResult:
        real = await ToolBoxSession._call(self, tool, call)
        others = [given for task, given in self._answers.get(call.name, {}).items() if task != self._task]
        if real.error is not None:
            return real
        if not others:
            return await super()._call(tool, call)
        draw = random.Random(f"{self._seed}/{self._episode}/{call.name}/{call.arguments}")
        answer = draw.choice(draw.choice(others))
        return replace(real, text=answer.text, media=answer.media, truncated=answer.truncated)


async def ablate(
    evaluator: Evaluator, environments: Mapping[str, Environment], conditions: Sequence[str], seed: int, step: int = 0
) -> dict[str, float]:
    """The metrics of an evaluation with the tools, and under `ablation/<condition>/` those of the conditions.
    `environments` are those with tools. Raises ConfigError where a task is for another."""
    runner = evaluator.runner
    assert isinstance(runner, Runner), "the command rejects rollout workers"
    needed = {pick_environment(runner.environments, task).name for task in evaluator.tasks()}
    if bare := sorted(needed - environments.keys()):
        own = runner.environments[bare[0]].harness is not None
        text = "those that its harness brings can't be taken away" if own else "there is nothing to take away"
        text = f"--ablate: environments.{bare[0]} names no tools, and {text}"
        raise ConfigError(text, hint="Evaluate without --ablate, or give it tools.")
    groups = await evaluator.groups(step)
    metrics, values = evaluator.metrics(groups), values_by_task(groups)
    shuffled = partial(ShuffledAnswers, answers=_answers(groups), seed=seed)
    sessions: dict[str, Any] = {"none": WithoutTools, "shuffled": shuffled, "failing": FailingTools}
    for condition in conditions:
        changed = {name: replace(it, tools=copy.copy(it.tools)) for name, it in environments.items()}
        for environment in changed.values():
            environment.tools.sessions = sessions[condition]
        under = await replace(evaluator, runner=runner.variant(changed, condition)).groups(step)
        found, baseline = evaluator.metrics(under), values_by_task(under)
        shown = {name: value for name, value in found.items() if measured(name) in _SHOWN}
        for name in ("accuracy", "reward/mean"):
            benefit = paired_difference(values[name], baseline[name], shares=is_share(name)) or {}
            shown |= {f"benefit/{name}/{key}".removesuffix("/value"): value for key, value in benefit.items()}
        metrics |= {f"ablation/{condition}/{name}": value for name, value in shown.items()}
    return metrics


def _answers(groups: Sequence[Group]) -> Answers:
    found: dict[str, dict[str, list[ToolResult]]] = defaultdict(lambda: defaultdict(list))
    episodes = [episode for group in groups for episode in group.episodes]
    for task, record in ((episode.task.id, record) for episode in episodes for record in episode.calls):
        if isinstance(record.call, ToolCall) and record.result.error is None:
            found[record.call.name][task].append(record.result)
    return found
