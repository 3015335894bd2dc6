"""Advantages against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install toolrl[train]")

from toolrl.train.advantage import EPSILON, credit, flat_groups, group_advantages, token_advantages  # noqa: E402
from toolrl.types import Group, Segment, Task, Turn  # noqa: E402

REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 4.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1])


def test_grpo_divides_by_the_groups_sample_deviation() -> None:
    # Group 0: mean 1/4, sample variance (9/16 + 3/16) / 3 = 1/4. Group 1: mean 3, sample variance 2.
    advantages = group_advantages(REWARDS, GROUPS, scale="std")
    zero, one = 0.5 + EPSILON, math.sqrt(2) + EPSILON
    expected = [0.75 / zero, -0.25 / zero, -0.25 / zero, -0.25 / zero, -1 / one, 1 / one]
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)


def test_dr_grpo_divides_by_nothing() -> None:
    advantages = group_advantages(REWARDS, GROUPS, scale="none")
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25, -1.0, 1.0]


def test_batch_scale_is_the_deviation_of_all_rewards() -> None:
    advantages = group_advantages(REWARDS, GROUPS, scale="batch_std")
    mean = 7 / 6
    std = math.sqrt(sum((reward - mean) ** 2 for reward in REWARDS.tolist()) / 5)
    assert advantages[0].item() == pytest.approx(0.75 / (std + EPSILON), abs=1e-12)
    assert advantages[5].item() == pytest.approx(1.0 / (std + EPSILON), abs=1e-12)


@pytest.mark.parametrize("scale", ["std", "batch_std", "none"])
def test_failed_episodes_are_no_data(scale: Any) -> None:
    rewards = torch.cat([REWARDS, torch.tensor([math.nan, 1e9])])
    groups = torch.cat([GROUPS, torch.tensor([0, 1])])
    valid = torch.tensor([True] * 6 + [False] * 2)
    advantages = group_advantages(rewards, groups, valid, scale=scale)
    assert advantages[:6].tolist() == group_advantages(REWARDS, GROUPS, scale=scale).tolist()
    assert advantages[6:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", ["std", "batch_std", "none"])
def test_a_group_of_one_and_a_flat_group_get_zero(scale: Any) -> None:
    # 0.1 + 0.2 and 0.3 differ in their last bit.
    rewards = torch.tensor([5.0, 0.1 + 0.2, 0.3, 1.0, 0.0], dtype=torch.float64)
    groups = torch.tensor([0, 1, 1, 2, 2])
    advantages = group_advantages(rewards, groups, scale=scale)
    assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert advantages[3] > 0
    assert flat_groups(rewards, groups).tolist() == [True, True, False]


def test_a_group_without_valid_episodes_is_flat() -> None:
    rewards = torch.tensor([1.0, 2.0, 3.0])
    groups = torch.tensor([0, 0, 1])
    valid = torch.tensor([False, False, True])
    assert flat_groups(rewards, groups, valid).tolist() == [True, True]
    assert group_advantages(rewards, groups, valid).tolist() == [0.0, 0.0, 0.0]


def test_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="'group'"):
        group_advantages(REWARDS, GROUPS, scale="group")  # type: ignore[arg-type]


def _groups(make_episode: Any, *rewards: tuple[float | None, ...]) -> list[Group]:
    return [
        Group(
            str(number),
            Task(str(number), ()),
            tuple(
                make_episode(reward=reward or 0.0, failed=reward is None, index=index, group=str(number))
                for index, reward in enumerate(of_group)
            ),
        )
        for number, of_group in enumerate(rewards)
    ]


def test_credit_leaves_out_failed_episodes(make_episode: Any) -> None:
    credited = credit(_groups(make_episode, (1.0, None, 0.0), (2.0, 2.0)), scale="none")
    assert [(e.group, e.index) for e in credited.episodes] == [("0", 0), ("0", 2), ("1", 0), ("1", 1)]
    assert credited.advantages == [0.5, -0.5, 0.0, 0.0]
    assert (credited.flat, credited.groups) == (1, 2)


def test_credit_drops_flat_groups_when_asked(make_episode: Any) -> None:
    credited = credit(_groups(make_episode, (2.0, 2.0), (1.0, 0.0), (None, 3.0)), scale="none", drop_flat=True)
    assert [e.group for e in credited.episodes] == ["1", "1"]
    assert credited.flat == 2


def test_credit_of_nothing() -> None:
    assert list(credit([], scale="std").episodes) == []


def test_tokens_get_the_episodes_advantage(make_episode: Any) -> None:
    assert token_advantages(make_episode((0, 1, 1, 0, 1, 0)), 0.5) == [0.0, 0.5, 0.5, 0.0, 0.5, 0.0]


def test_tokens_get_their_turns_advantage(make_episode: Any) -> None:
    episode = make_episode((0, 1, 1, 0, 1, 0))
    assert token_advantages(episode, {0: 1.0, 1: -2.0}) == [0.0, 1.0, 1.0, 0.0, -2.0, 0.0]
    with pytest.raises(KeyError):
        token_advantages(episode, {0: 1.0})


def test_tool_text_inside_a_turn_gets_none(make_episode: Any) -> None:
    segments = (Segment("model", "a", (1, 3)), Segment("tool", "b", (3, 4)), Segment("model", "c", (4, 5)))
    episode = make_episode((0, 1, 1, 0, 1), turns=(Turn(0, segments, (), (), "stop"),))
    assert token_advantages(episode, {0: 3.0}) == [0.0, 3.0, 3.0, 0.0, 3.0]
