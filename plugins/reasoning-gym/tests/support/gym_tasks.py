"""Data sets, tasks and episodes of reasoning_gym for tests."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

from toolrl.types import Episode, Score, Task
from toolrl_plugin_reasoning_gym.dataset import ReasoningGym
from toolrl_plugin_reasoning_gym.options import DataOptions, ReasoningGymRewardOptions
from toolrl_plugin_reasoning_gym.reward import ReasoningGymReward
from toolrl_testing import make_build_context, make_episode


def data(*generators: Any, **options: Any) -> ReasoningGym:
    """A data set of these generators."""
    given = DataOptions.model_validate({"generators": list(generators), "size": 8, **options})
    return ReasoningGym(given, make_build_context("reasoning_gym"))


def reward(**options: Any) -> ReasoningGymReward:
    """A reward with one worker, which takes the final text as the answer."""
    given = ReasoningGymRewardOptions.model_validate({"workers": 1, "form": "text", **options})
    return ReasoningGymReward(given, make_build_context("reasoning_gym"))


def said(task: Task, *texts: str, **fields: Any) -> Episode:
    """An episode in which the model says these texts."""
    return make_episode(*texts, task=task, **fields)


@functools.cache
def _kept_reward(options: str) -> ReasoningGymReward:
    return reward(**json.loads(options))


def scores(*episodes: Episode, **options: Any) -> list[Score]:
    """What a reward with these options gives them, in order. Its worker is kept: starting one takes seconds."""

    async def run() -> list[Score]:
        kept = _kept_reward(json.dumps(options, sort_keys=True))
        return [await kept.score(episode) for episode in episodes]

    return asyncio.run(run())


@functools.cache
def sum_task() -> Task:
    """A task whose scorer compares texts."""
    return data("chain_sum", size=1)[0]


def failures(score: Score) -> set[str]:
    """What went wrong, by the metrics."""
    return {name for name in ("timeout", "refused", "raised", "died") if score.metrics[name]}
