"""No two metrics under one name, whatever rewards, tools and environments are called."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl.loop.metrics import episode_metrics, error_metrics
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.scoring import EpisodeReward, reward_names
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Group, Score, ToolResult, ToolSpec
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    RecordingToolset,
    ScriptedEngine,
    make_episode,
    make_task,
)


class Gives:
    def __init__(self, value: float, metrics: Mapping[str, float]) -> None:
        self._score = Score(value, metrics=metrics)

    async def score(self, episode: Episode) -> Score:
        return self._score


def played(
    rewards: Mapping[str, tuple[float, Mapping[str, float]]], tool: str = "t", result: Any = None
) -> list[Group]:
    """Two episodes with one call each."""
    toolset = RecordingToolset(lambda call: result or ToolResult("ok"), (ToolSpec(tool, "Says ok."),))
    names = reward_names(rewards)
    named = [NamedReward(name, Gives(*given)) for name, given in zip(names, rewards.values(), strict=True)]
    box = ToolBox([ToolEntry(tool, toolset)])
    parser = FakeParser(lambda text: [tool] if text == "call" else [])
    runner = Runner(
        ScriptedEngine(["call", "done"]),
        {"default": Environment("default", parser, FakeChatFormat(), box, named, call_cost=1.0)},
        max_error_rate=1.0,
    )
    tasks = [make_task(id=f"t{number}") for number in range(2)]
    groups = asyncio.run(runner.run(tasks, 1, Limits(50, 500), round_id="eval-1"))
    assert [it.failure for group in groups for it in group.episodes] == [None, None]
    return list(groups)


def metrics_of(groups: Sequence[Group]) -> dict[str, float]:
    return {**episode_metrics(groups, evaluation=True), **error_metrics(groups, 1)}


def test_a_rewards_own_mean_is_not_its_mean() -> None:
    metrics = metrics_of(played({"r": (1.0, {"mean": 7.0, "own/mean": 8.0, "len/mean": 9.0})}))
    assert metrics["reward/r/mean"] == 1.0
    assert metrics["reward/r/own/mean"] == 7.0
    assert metrics["reward/r/own/own/mean"] == 8.0
    assert metrics["reward/r/len/mean"] == 9.0


@pytest.mark.parametrize("name", ["call_cost", "harness", "mean", "model", "tool", "std"])
def test_a_reward_may_be_called_like_another_source(name: str) -> None:
    given = {name: (1.0, {"mean": 7.0, "stderr": 7.0, "std": 7.0, "t/hits": 7.0, "opened": 7.0, "correct": 1.0})}
    metrics = metrics_of(played(given, result=ToolResult("ok", metrics={"hits": 3.0})))
    assert metrics["reward/call_cost/mean"] == -1.0
    assert metrics["reward/mean"] == metrics["reward/std"] == metrics["reward/mean/stderr"] == 0.0
    assert (metrics["tool/t/hits"], metrics["accuracy"]) == (3.0, 1.0)
    assert "model/opened" not in metrics
    assert 7.0 not in [value for key, value in metrics.items() if not key.startswith(f"reward/{name}")]


def test_a_plugins_reward_is_told_from_a_metric_of_that_name() -> None:
    metrics = metrics_of(played({"math": (1.0, {"exact/mean": 7.0}), "math/exact": (0.5, {})}))
    assert metrics["reward/math/exact/mean"] == 0.5
    assert [key for key, value in metrics.items() if value == 7.0] == ["reward/math/exact/own/mean"]


def test_two_rewards_never_overwrite_each_others_metrics() -> None:
    reward, episode = EpisodeReward([]), make_episode("x")
    reward.add_score(NamedReward("math", Gives(0, {})), Score(0.0, metrics={"exact/correct": 0.0}), episode)
    with pytest.raises(RewardError, match="'math/exact'.*'math/exact/correct'"):
        reward.add_score(NamedReward("math/exact", Gives(0, {})), Score(1.0, metrics={"correct": 1.0}), episode)


def test_rewards_that_a_config_names_twice_are_told_apart() -> None:
    assert reward_names(["judge", "exact", "judge"]) == ["judge", "exact", "judge-2"]
    assert reward_names(["judge", "judge", "judge-2"]) == ["judge", "judge-3", "judge-2"]
    assert reward_names(["tool", "tool-reward", "math/tool"]) == ["tool-reward", "tool-reward-2", "math/tool"]


def test_a_tools_own_metrics_are_not_its_policys() -> None:
    result = ToolResult("ok", metrics={"policy/retries": 7.0, "own/policy/retries": 8.0, "mean": 9.0})
    metrics = metrics_of(played({"r": (0.0, {})}, result=result))
    assert metrics["tool/t/own/policy/retries"] == 7.0
    assert metrics["tool/t/own/own/policy/retries"] == 8.0
    assert metrics["tool/t/mean"] == 9.0


def test_a_tool_called_environment_is_not_the_environment() -> None:
    groups = played({"r": (0.0, {})}, tool="environment", result=ToolResult("ok", reward=1.0))
    assert {"step:environment-tool", "call_cost"} < {it.source for it in groups[0].episodes[0].rewards}
