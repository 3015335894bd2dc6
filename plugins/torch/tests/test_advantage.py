"""Advantages against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.objective.advantage import EPSILON, flat_groups, group_advantages

REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 4.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1])
CENTRED = [0.75, -0.25, -0.25, -0.25, -1.0, 1.0]
"""Rewards less the mean of their group, 1/4 and 3."""


def deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) + EPSILON


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Sample variances of the groups: (9/16 + 3/16) / 3 = 1/4, and 2.
        ({}, [value / (std + EPSILON) for value, std in zip(CENTRED, [0.5] * 4 + [2**0.5] * 2, strict=True)]),
        ({"scale": "none"}, CENTRED),
        ({"scale": "batch_std"}, [value / deviation(REWARDS.tolist()) for value in CENTRED]),
        ({"scale": "advantage_std"}, [value / deviation(CENTRED) for value in CENTRED]),
        # 1 against a mean of 0; 0 against (1 + 0 + 0) / 3; 2 against 4 and 4 against 2.
        ({"baseline": "leave_one_out", "scale": "none"}, [1.0, -1 / 3, -1 / 3, -1 / 3, -2.0, 2.0]),
        (
            {"baseline": "batch_mean", "scale": "advantage_std"},
            [(reward - 7 / 6) / deviation(REWARDS.tolist()) for reward in REWARDS.tolist()],
        ),
    ],
    ids=str,
)
def test_values_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    assert group_advantages(REWARDS, GROUPS, **settings).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", ["std", "batch_std", "advantage_std", "none"])
def test_failed_episodes_are_no_data(scale: Any) -> None:
    rewards = torch.cat([REWARDS, torch.tensor([math.nan, 1e9])])
    groups = torch.cat([GROUPS, torch.tensor([0, 1])])
    valid = torch.tensor([True] * 6 + [False] * 2)
    advantages = group_advantages(rewards, groups, valid, scale=scale)
    assert advantages[:6].tolist() == group_advantages(REWARDS, GROUPS, scale=scale).tolist()
    assert advantages[6:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", ["std", "batch_std", "advantage_std", "none"])
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


def test_leave_one_out_counts_valid_episodes_only() -> None:
    rewards = torch.cat([REWARDS, torch.tensor([math.nan])])
    groups, valid = torch.cat([GROUPS, torch.tensor([1])]), torch.tensor([True] * 6 + [False])
    advantages = group_advantages(rewards, groups, valid, baseline="leave_one_out", scale="none")
    assert advantages[4:].tolist() == [-2.0, 2.0, 0.0]


def test_a_batch_baseline_compares_groups_of_one() -> None:
    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    assert group_advantages(rewards, groups, baseline="batch_mean", scale="none").tolist() == [0.5, -0.5]
    assert group_advantages(rewards, groups, scale="none").tolist() == [0.0, 0.0]
    flat = group_advantages(torch.tensor([0.3, 0.1 + 0.2]), groups, baseline="batch_mean", scale="advantage_std")
    assert flat.tolist() == [0.0, 0.0]
