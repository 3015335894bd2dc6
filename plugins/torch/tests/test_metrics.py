"""Metrics of episodes by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from toolrl.loop.metrics import episode_metrics, pass_at_k, pass_metrics
from toolrl.types import CallRecord, Group, RewardEntry, Segment, Task, ToolCall, ToolResult, Turn


def _turn(index: int, *errors: str | None) -> Turn:
    calls = tuple(CallRecord(ToolCall("calc", {}), ToolResult("", error=error)) for error in errors)
    return Turn(
        index, (Segment("model", "x", (1, 2)),), (), calls, "stop", generate_seconds=2.0, tool_seconds=len(errors) / 4
    )


def _groups(*groups: list[Any]) -> list[Group]:
    return [Group(str(number), Task(str(number), ()), tuple(group)) for number, group in enumerate(groups)]


def test_a_step(make_episode: Any) -> None:
    one = make_episode(
        (0, 0, 1, 1, 0, 1),
        turns=(_turn(0, None, "timeout"), _turn(1)),
        rewards=(
            RewardEntry(0, "step:calc", 0.5),
            RewardEntry(1, "step:calc", 0.25),
            RewardEntry(None, "reward:math", 1.0, weight=2.0),
        ),
        metrics={"correct": 1.0, "math/parsed": 1.0, "tool/calc/depth": 4.0},
        seconds=5.0,
    )
    two = make_episode(
        (0, 0, 0, 0, 1),
        turns=(_turn(0),),
        stop_reason="max_tokens",
        rewards=(RewardEntry(None, "reward:math", 0.0),),
        metrics={"correct": 0.0, "math/parsed": 0.0},
    )
    failed = make_episode(reward=100.0, failed=True, metrics={"correct": 1.0})
    assert episode_metrics(_groups([one, two, failed])) == pytest.approx(
        {
            "errors/rate": 1 / 3,
            "errors/count": 1.0,
            "reward/mean": 1.375,
            "reward/std": 1.375,
            "accuracy": 0.5,
            "reward/step:calc/mean": 0.75,
            "reward/math/mean": 0.5,
            "reward/math/parsed": 0.5,
            "tool/calc/depth": 4.0,
            "turns/mean": 1.5,
            "calls/mean": 1.0,
            "calls/success": 0.5,
            "calls/error/timeout": 0.5,
            "stop/answer": 0.5,
            "stop/max_tokens": 0.5,
            "truncated": 0.5,
            "tokens/sampled": 2.0,
            "tokens/prompt": 3.0,
            "time/generate": 3.0,
            "time/tools": 0.25,
            "time/longest": 5.0,
        }
    )


def test_pass_at_k_counts_the_subsets() -> None:
    """The estimate is the share of k-subsets of the episodes that hold a correct one."""
    for episodes, correct in [(5, 2), (4, 0), (4, 4), (6, 1)]:
        outcomes = [True] * correct + [False] * (episodes - correct)
        for k in range(1, episodes + 1):
            subsets = list(itertools.combinations(outcomes, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(episodes, correct, k) == pytest.approx(expected)


def test_pass_metrics_are_means_over_tasks(make_episode: Any) -> None:
    def group(*correct: float | None) -> list[Any]:
        return [make_episode(metrics={} if value is None else {"correct": value}) for value in correct]

    groups = _groups(group(1.0, 0.0), group(0.0, 0.0), group(1.0, 1.0))
    assert pass_metrics(groups, 2) == pytest.approx({"avg@2": 0.5, "pass@2": 2 / 3})
    # A task with one judged episode says nothing of pass@2.
    assert pass_metrics(_groups(group(1.0, None), group(0.0, 0.0)), 2) == pytest.approx({"avg@2": 0.5, "pass@2": 0.0})
    assert pass_metrics(_groups(group(None)), 1) == {}


def test_failed_episodes_are_wrong_in_an_evaluation(make_episode: Any) -> None:
    """Also where the episode was judged before it failed, and where all of a task failed."""
    right, failed = make_episode(metrics={"correct": 1.0}), make_episode(failed=True, metrics={"correct": 1.0})
    groups = _groups([right, failed], [failed, failed], [right, right])
    assert pass_metrics(groups, 2) == pytest.approx({"avg@2": 0.5, "pass@2": 2 / 3})
    metrics = episode_metrics(groups, evaluation=True)
    assert (metrics["accuracy"], metrics["errors/count"]) == (0.5, 3.0)
    assert episode_metrics(groups)["accuracy"] == 1.0, "a step of training counts them apart"
    only = _groups([failed])
    assert episode_metrics(only, evaluation=True)["accuracy"] == pass_metrics(only, 1)["avg@1"] == 0.0
