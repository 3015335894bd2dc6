"""Contracts of rewards: a finite score for every episode, which is left unchanged."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from toolrl.protocols import Reward, ScoresGroups, StartsAndStops
from toolrl.rollouts.environment import NamedReward
from toolrl.rollouts.scoring import score_of, scored_together
from toolrl.types import CallError, CallRecord, Episode, Score, ToolCall, ToolResult
from toolrl_testing.checks import fail, require
from toolrl_testing.fakes import make_episode, make_task


def sample_episodes(answer: Any = "4") -> list[Episode]:
    """Episodes as they come: without a turn, empty, long, with calls, cut off; `answer` is the task's."""
    task = make_task(answer=answer)
    call = CallRecord(ToolCall("calculator", {"expression": "2+2"}, id="call_1"), ToolResult("4", reward=0.5))
    bad = CallRecord(CallError("invalid_json", "No JSON."), ToolResult("No JSON.", error="malformed"))
    return [
        make_episode(task=task, stop_reason="context_full"),
        make_episode("", task=task),
        make_episode("The answer is 4.", task=task),
        make_episode("I am not sure: 5, or \\boxed{4}\n#### 4", task=task, answer="4", stop_reason="answer"),
        make_episode("calculator", "So it is 4.", task=task, calls={0: [call]}),
        make_episode("broken", "and again", task=task, calls={0: [bad], 1: [bad, call]}, stop_reason="max_turns"),
        make_episode("{" * 3000 + "\x00é🙂", task=task, stop_reason="max_tokens"),
    ]


async def check_scores(reward: Any, episodes: Sequence[Episode]) -> None:
    """Each episode gets a finite Score, per-turn credit names turns it has, and the episode isn't changed.

    A reward that starts and stops does so around it."""
    starts = isinstance(reward, StartsAndStops)
    if starts:
        await reward.start()
    try:
        if isinstance(reward, ScoresGroups):
            await _check_group(reward, episodes)
        else:
            for episode in episodes:
                await _check_episode(reward, episode)
    finally:
        if starts:
            await reward.stop()


async def _check_episode(reward: Reward, episode: Episode) -> None:
    where = _where(episode)
    before = copy.deepcopy(episode)
    try:
        score = await score_of(NamedReward("checked", reward), episode)
    except Exception as error:  # noqa: BLE001 - said as a broken contract
        cause = error.__cause__ or error
        fail(f"score() raised {type(cause).__name__}: {cause} {where}")
    _check_score(score, episode, "score()")
    require(episode == before, f"score() changed the episode {where}")


async def _check_group(reward: ScoresGroups, episodes: Sequence[Episode]) -> None:
    """All of them as one group, and one alone."""
    for group in (tuple(episodes), tuple(episodes[:1])):
        before = copy.deepcopy(group)
        for episode in await scored_together(group, [NamedReward("checked", reward)]):
            failure = episode.failure
            require(failure is None, f"score_group(): {failure.message if failure else ''} {_where(episode)}")
        require(group == before, "score_group() changed an episode")


def _check_score(score: Any, episode: Episode, what: str) -> None:
    where = _where(episode)
    if not isinstance(score, Score):
        fail(f"{what} gave {type(score).__name__} {score!r:.80}, expected a Score {where}")
    require(_finite(score.value), f"the score is {score.value!r}, expected a finite number {where}")
    for turn, credit in score.per_turn.items():
        require(turn in range(len(episode.turns)), f"credit for turn {turn!r}, which isn't there {where}")
        require(_finite(credit), f"the credit of turn {turn} is {credit!r} {where}")
    for name, metric in score.metrics.items():
        require(_finite(metric), f"metric {name!r} is {metric!r}, expected a finite number {where}")
    correct = score.metrics.get("correct")
    require(correct is None or 0 <= correct <= 1, f"`correct` is {correct}, expected 0 to 1 {where}")


def _where(episode: Episode) -> str:
    return f"for an episode with {len(episode.turns)} turns that says {episode.model_text!r:.80}"


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
