"""Advantages where nothing can be compared. `test_random_objectives.py` has the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from toolrl_plugin_torch.objective.advantage import flat_groups, group_advantages


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


def test_a_batch_baseline_compares_groups_of_one() -> None:
    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    assert group_advantages(rewards, groups, baseline="batch_mean", scale="none").tolist() == [0.5, -0.5]
    assert group_advantages(rewards, groups, scale="none").tolist() == [0.0, 0.0]
    flat = group_advantages(torch.tensor([0.3, 0.1 + 0.2]), groups, baseline="batch_mean", scale="advantage_std")
    assert flat.tolist() == [0.0, 0.0]
