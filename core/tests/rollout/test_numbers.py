"""Numbers that can't be trained on stop at the episode that they came from."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, ToolResult, ToolSpec
from toolrl_testing.fakes import FakeChatFormat, FakeParser, RecordingToolset, ScriptedEngine, make_task

TWO_CALLS = FakeParser(lambda text: ["t", "t"] if text == "call" else [])


class Gives:
    def __init__(self, score: Any) -> None:
        self._score = score

    async def score(self, episode: Episode) -> Score:
        return self._score  # type: ignore[no-any-return]


def run(*scores: Any, result: ToolResult | None = None, weight: float = 1.0, task: Any = None) -> Episode:
    toolset = RecordingToolset(lambda call: result or ToolResult("ok"), (ToolSpec("t", "Says ok."),))
    rewards = [NamedReward(f"r{number}", Gives(score), weight) for number, score in enumerate(scores)]
    env = Environment(
        "default",
        TWO_CALLS,
        FakeChatFormat(),
        ToolBox([ToolEntry("t", toolset)]),
        rewards,
    )
    runner = Runner(ScriptedEngine(["call", "done"]), {"default": env}, max_error_rate=1.0)
    groups = asyncio.run(runner.run([task or make_task()], 1, Limits(50, 500), round_id="train-1"))
    return groups[0].episodes[0]


@pytest.mark.parametrize(
    "score",
    [
        Score(math.nan),
        Score(1e200),
        Score(1.0, per_turn={0: math.inf}),
        Score(1.0, metrics={"correct": math.nan}),
        Score(1.0, metrics={"length": -math.inf}),
        Score(1.0, metrics={"correct": "yes"}),  # type: ignore[dict-item]
        Score(1.0, per_turn={2: 1.0}),
        Score(1.0, per_turn={-1: 1.0}),
        Score(1.0, per_turn={"0": 1.0}),  # type: ignore[dict-item]
        1.0,
        None,
    ],
)
def test_a_score_that_is_none_fails_its_episode(score: Any) -> None:
    episode = run(score)
    assert episode.failure is not None
    assert episode.failure.fault == "reward"
    assert "'r0" in episode.failure.message


@pytest.mark.parametrize(("scores", "weight"), [([Score(9e99)] * 2, 1.0), ([Score(1e60)], 1e60)])
def test_rewards_that_overflow_together_or_by_their_weight_fail_the_episode(scores: list[Score], weight: float) -> None:
    episode = run(*scores, weight=weight)
    assert episode.failure is not None
    assert "the sum of all rewards" in episode.failure.message


@pytest.mark.parametrize("result", [ToolResult("x", reward=1e300), ToolResult("x", metrics={"m": 1e308})])
def test_a_tools_numbers_are_bounded_too(result: ToolResult) -> None:
    episode = run(Score(1.0), result=result)
    assert episode.failure is None
    assert {record.result.error for record in episode.calls} == {"crash"}
    assert math.isfinite(episode.reward)
    assert all(math.isfinite(value) for value in episode.metrics.values())
