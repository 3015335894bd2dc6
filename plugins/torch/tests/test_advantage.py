"""Advantages against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from toolrl_plugin_torch.objective.advantage import EPSILON, flat_groups, group_advantages  # noqa: E402

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


def test_leave_one_out_compares_with_the_others() -> None:
    # 1 against a mean of 0; 0 against (1 + 0 + 0) / 3; 2 against 4 and 4 against 2.
    advantages = group_advantages(REWARDS, GROUPS, baseline="leave_one_out", scale="none")
    assert advantages.tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3, -2.0, 2.0], abs=1e-12)


def test_leave_one_out_counts_valid_episodes_only() -> None:
    rewards = torch.cat([REWARDS, torch.tensor([math.nan])])
    groups, valid = torch.cat([GROUPS, torch.tensor([1])]), torch.tensor([True] * 6 + [False])
    advantages = group_advantages(rewards, groups, valid, baseline="leave_one_out", scale="none")
    assert advantages[4:].tolist() == [-2.0, 2.0, 0.0]


def test_reinforce_plus_plus_normalises_over_the_batch() -> None:
    # Mean 7/6; the deviation of all six.
    advantages = group_advantages(REWARDS, GROUPS, baseline="batch_mean", scale="advantage_std")
    std = math.sqrt(sum((reward - 7 / 6) ** 2 for reward in REWARDS.tolist()) / 5)
    expected = [(reward - 7 / 6) / (std + EPSILON) for reward in REWARDS.tolist()]
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)


def test_a_batch_baseline_compares_groups_of_one() -> None:
    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    assert group_advantages(rewards, groups, baseline="batch_mean", scale="none").tolist() == [0.5, -0.5]
    assert group_advantages(rewards, groups, scale="none").tolist() == [0.0, 0.0]
    flat = group_advantages(torch.tensor([0.3, 0.1 + 0.2]), groups, baseline="batch_mean", scale="advantage_std")
    assert flat.tolist() == [0.0, 0.0]


def test_reinforce_plus_plus_with_the_groups_baseline() -> None:
    """Differences to the groups' means, 0.75, −0.25 (three times), −1 and 1, over their own deviation."""
    advantages = group_advantages(REWARDS, GROUPS, scale="advantage_std")
    differences = [0.75, -0.25, -0.25, -0.25, -1.0, 1.0]
    std = math.sqrt(sum(value**2 for value in differences) / 5)
    assert advantages.tolist() == pytest.approx([value / (std + EPSILON) for value in differences], abs=1e-12)
