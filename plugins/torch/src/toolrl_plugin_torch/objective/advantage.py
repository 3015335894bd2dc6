"""Advantages: how much better an episode was than the others of its group.

An episode's advantage is its reward less a baseline:

    group_mean     the mean reward of its group (GRPO, arXiv 2402.03300, section 4.1.2)
    leave_one_out  the mean reward of the others of its group (RLOO, arXiv 2402.14740)
    batch_mean     the mean of all rewards of the batch (REINFORCE++, arXiv 2501.03262)

divided by a scale:

    std            the standard deviation of its group (GRPO)
    none           1 (Dr. GRPO, arXiv 2503.20783: dividing weighs very easy and very hard tasks up)
    batch_std      the standard deviation of all rewards of the batch (arXiv 2508.08221)
    advantage_std  that of all differences of the batch, whose mean is taken off first (REINFORCE++)

Standard deviations are those of a sample (n − 1 in the denominator), and `EPSILON` is added to them; both as in TRL,
and the first as in verl. Episodes that failed are no data: they enter no mean and no deviation, and their advantage is
0. A group of one has nothing to be compared with, and a group of equal rewards teaches nothing: their advantages are
exactly 0, unless the baseline is that of the whole batch.

Everything is computed in float64, because equal rewards that differ in their last bit must not become advantages.
"""

from __future__ import annotations

import torch

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""

_EQUAL = 1e-9
"""Rewards of a group that lie closer together than this, relative to their size or to 1, are equal."""


def group_advantages(
    rewards_B: torch.Tensor,
    groups_B: torch.Tensor,
    valid_B: torch.Tensor | None = None,
    *,
    baseline: str = "group_mean",
    scale: str = "std",
) -> torch.Tensor:
    """Advantage of each episode, float64, shape [B].

    `groups_B` holds each episode's group as an integer from 0; groups may differ in size. `valid_B` is False for
    episodes that failed; None for none. Rewards of failed episodes may be anything, NaN included.
    """
    valid_B = _valid(rewards_B, valid_B)
    rewards_B = torch.where(valid_B, rewards_B.double(), 0.0)
    mean_G, std_G, count_G = group_statistics(rewards_B, groups_B, valid_B)
    flat_B = flat_groups(rewards_B, groups_B, valid_B)[groups_B]
    if baseline == "batch_mean":
        centred_B = rewards_B - _batch_mean(rewards_B, valid_B)
        flat_B = flat_groups(rewards_B, torch.zeros_like(groups_B), valid_B).expand_as(valid_B)
    else:
        centred_B = rewards_B - mean_G[groups_B]
        if baseline == "leave_one_out":
            # r − (sum − r) / (n − 1) is n / (n − 1) times r − mean.
            centred_B = centred_B * (count_G / (count_G - 1.0).clamp(min=1.0))[groups_B]
    nothing_B = ~valid_B | flat_B
    centred_B = torch.where(nothing_B, 0.0, centred_B)
    if scale == "std":
        centred_B = centred_B / (std_G[groups_B] + EPSILON)
    elif scale == "batch_std":
        centred_B = centred_B / (_batch_std(rewards_B, valid_B) + EPSILON)
    elif scale == "advantage_std":
        centred_B = centred_B - _batch_mean(centred_B, valid_B)
        centred_B = centred_B / (_batch_std(centred_B, valid_B) + EPSILON)
    return torch.where(nothing_B, 0.0, centred_B)


def flat_groups(rewards_B: torch.Tensor, groups_B: torch.Tensor, valid_B: torch.Tensor | None = None) -> torch.Tensor:
    """Whether the rewards of each group are all equal, bool, shape [G]; groups of one or of none are flat too."""
    valid_B = _valid(rewards_B, valid_B)
    rewards_B = rewards_B.double()
    count = _group_count(groups_B)
    low_G = torch.full((count,), torch.inf, dtype=torch.float64, device=rewards_B.device)
    high_G = -low_G
    low_G = low_G.scatter_reduce(0, groups_B, torch.where(valid_B, rewards_B, torch.inf), "amin")
    high_G = high_G.scatter_reduce(0, groups_B, torch.where(valid_B, rewards_B, -torch.inf), "amax")
    size_G = torch.maximum(low_G.abs(), high_G.abs()).clamp(min=1.0)
    return (high_G < low_G) | (high_G - low_G <= _EQUAL * size_G)


def group_statistics(
    rewards_B: torch.Tensor, groups_B: torch.Tensor, valid_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, sample standard deviation and number of the valid rewards of each group, each [G]."""
    zeros_G = torch.zeros(_group_count(groups_B), dtype=torch.float64, device=rewards_B.device)
    count_G = zeros_G.index_add(0, groups_B, valid_B.double())
    mean_G = zeros_G.index_add(0, groups_B, torch.where(valid_B, rewards_B, 0.0)) / count_G.clamp(min=1.0)
    centred_B = torch.where(valid_B, rewards_B - mean_G[groups_B], 0.0)
    variance_G = zeros_G.index_add(0, groups_B, centred_B.square()) / (count_G - 1.0).clamp(min=1.0)
    return mean_G, variance_G.sqrt(), count_G


def _valid(rewards_B: torch.Tensor, valid_B: torch.Tensor | None) -> torch.Tensor:
    return torch.ones_like(rewards_B, dtype=torch.bool) if valid_B is None else valid_B.bool()


def _group_count(groups_B: torch.Tensor) -> int:
    return int(groups_B.max()) + 1 if groups_B.numel() else 0


def _batch_mean(rewards_B: torch.Tensor, valid_B: torch.Tensor) -> torch.Tensor:
    kept = rewards_B[valid_B]
    return kept.mean() if kept.numel() else torch.zeros((), dtype=torch.float64, device=rewards_B.device)


def _batch_std(rewards_B: torch.Tensor, valid_B: torch.Tensor) -> torch.Tensor:
    kept = rewards_B[valid_B]
    return kept.std() if kept.numel() > 1 else torch.zeros((), dtype=torch.float64, device=rewards_B.device)
