"""The reward `format`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from toolrl.builtin.rewards import FormatReward, FormatRewardOptions
from toolrl.types import CallError, Episode, ToolCall
from toolrl_testing import make_episode

CALL, MENDED, BROKEN = ToolCall("f", {}), ToolCall("f", {}, recovered=True), CallError("invalid_json", "")


def episode(*turns: tuple) -> Episode:
    made = make_episode(*("text" for _ in turns))
    changed = tuple(replace(turn, items=items) for turn, items in zip(made.turns, turns, strict=True))
    return replace(made, trajectories=(replace(made.main, turns=changed),))


@pytest.mark.parametrize(
    ("turns", "value", "mended"),
    [
        ((), 1.0, 1.0),
        (((),), 1.0, 1.0),
        (((CALL,),), 1.0, 1.0),
        (((CALL, BROKEN),), 0.5, 0.5),
        (((BROKEN,), (CALL, CALL, CALL)), 0.75, 0.75),
        (((BROKEN,),), 0.0, 0.0),
        (((MENDED, CALL, BROKEN, BROKEN),), 0.5, 0.375),
    ],
)
def test_share_of_calls(turns, value, mended):
    assert asyncio.run(FormatReward().score(episode(*turns))).value == value
    assert asyncio.run(FormatReward(FormatRewardOptions(recovered=0.5)).score(episode(*turns))).value == mended


def test_counts_are_metrics():
    score = asyncio.run(FormatReward().score(episode((MENDED, BROKEN), (BROKEN,))))
    assert score.metrics == {"malformed": 2.0, "recovered": 1.0}


def test_an_episode_without_calls_is_worth_what_the_option_says():
    assert asyncio.run(FormatReward(FormatRewardOptions(no_calls=0.0)).score(episode(()))).value == 0.0
