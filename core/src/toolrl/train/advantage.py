"""Advantages: how much better an episode was than the others of its group.

An episode's advantage is its reward less the mean reward of its group, divided by a scale:

    std        the standard deviation of its group (GRPO, arXiv 2402.03300, section 4.1.2)
    none       1 (Dr. GRPO, arXiv 2503.20783: dividing weighs very easy and very hard tasks up)
    batch_std  the standard deviation of all rewards of the batch (arXiv 2508.08221)

Standard deviations are those of a sample (n − 1 in the denominator), and `EPSILON` is added to them; both as in TRL,
and the first as in verl. Episodes that failed are no data: they enter no mean and no deviation, and their advantage is
0. A group of one has nothing to be compared with, and a group of equal rewards teaches nothing: their advantages are
exactly 0.

Everything is computed in float64, because equal rewards that differ in their last bit must not become advantages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from toolrl.types import Episode, Group

Scale = Literal["std", "batch_std", "none"]

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""

_EQUAL = 1e-9
"""Rewards of a group that lie closer together than this, relative to their size or to 1, are equal."""


def group_advantages(
    rewards_B: torch.Tensor,
    groups_B: torch.Tensor,
    valid_B: torch.Tensor | None = None,
    *,
    scale: Scale = "std",
    epsilon: float = EPSILON,
) -> torch.Tensor:
    """Advantage of each episode, float64, shape [B].

    `groups_B` holds each episode's group as an integer from 0; groups may differ in size. `valid_B` is False for
    episodes that failed; None for none. Rewards of failed episodes may be anything, NaN included.
    """
    valid_B = _valid(rewards_B, valid_B)
    rewards_B = torch.where(valid_B, rewards_B.double(), 0.0)
    mean_G, std_G, _ = _statistics(rewards_B, groups_B, valid_B)
    centred_B = rewards_B - mean_G[groups_B]
    if scale == "std":
        centred_B = centred_B / (std_G[groups_B] + epsilon)
    elif scale == "batch_std":
        centred_B = centred_B / (_batch_std(rewards_B, valid_B) + epsilon)
    elif scale != "none":
        raise ValueError(f"scale is {scale!r}, expected 'std', 'batch_std' or 'none'")
    nothing_B = ~valid_B | flat_groups(rewards_B, groups_B, valid_B)[groups_B]
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


def _valid(rewards_B: torch.Tensor, valid_B: torch.Tensor | None) -> torch.Tensor:
    return torch.ones_like(rewards_B, dtype=torch.bool) if valid_B is None else valid_B.bool()


def _group_count(groups_B: torch.Tensor) -> int:
    return int(groups_B.max()) + 1 if groups_B.numel() else 0


def _statistics(
    rewards_B: torch.Tensor, groups_B: torch.Tensor, valid_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, sample standard deviation and number of the valid rewards of each group, each [G]."""
    zeros_G = torch.zeros(_group_count(groups_B), dtype=torch.float64, device=rewards_B.device)
    count_G = zeros_G.index_add(0, groups_B, valid_B.double())
    mean_G = zeros_G.index_add(0, groups_B, torch.where(valid_B, rewards_B, 0.0)) / count_G.clamp(min=1.0)
    centred_B = torch.where(valid_B, rewards_B - mean_G[groups_B], 0.0)
    variance_G = zeros_G.index_add(0, groups_B, centred_B.square()) / (count_G - 1.0).clamp(min=1.0)
    return mean_G, variance_G.sqrt(), count_G


def _batch_std(rewards_B: torch.Tensor, valid_B: torch.Tensor) -> torch.Tensor:
    kept = rewards_B[valid_B]
    return kept.std() if kept.numel() > 1 else torch.zeros((), dtype=torch.float64, device=rewards_B.device)


@dataclass(frozen=True, slots=True)
class CreditedEpisodes:
    """The episodes to train on, with their advantages."""

    episodes: Sequence[Episode]
    """In the order of their groups; without those that failed, and without those of dropped groups."""
    advantages: Sequence[float]
    """One for each episode."""
    flat: int
    """Groups whose rewards were all equal, dropped or not."""
    groups: int
    """All groups."""


def credit(groups: Sequence[Group], *, scale: Scale, drop_flat: bool = False) -> CreditedEpisodes:
    """Advantages of a step's episodes. With `drop_flat`, groups of equal rewards are left out (arXiv 2503.14476,
    section 3.2, without the re-sampling)."""
    everyone = [(number, episode) for number, group in enumerate(groups) for episode in group.episodes]
    if not everyone:
        return CreditedEpisodes((), (), 0, len(groups))
    rewards_B = torch.tensor([episode.reward for _, episode in everyone], dtype=torch.float64)
    groups_B = torch.tensor([number for number, _ in everyone])
    valid_B = torch.tensor([episode.failure is None for _, episode in everyone])
    advantages_B = group_advantages(rewards_B, groups_B, valid_B, scale=scale)
    flat_G = flat_groups(rewards_B, groups_B, valid_B)
    kept = [
        (episode, advantage)
        for (number, episode), advantage in zip(everyone, advantages_B.tolist(), strict=True)
        if episode.failure is None and not (drop_flat and flat_G[number])
    ]
    return CreditedEpisodes(
        [episode for episode, _ in kept], [advantage for _, advantage in kept], int(flat_G.sum()), len(groups)
    )


def token_advantages(episode: Episode, advantage: float | Mapping[int, float]) -> list[float]:
    """An advantage for each of the episode's tokens (length T), 0 where the loss mask is 0.

    A number is credited to every sampled token. A mapping credits each turn's sampled tokens with the value under the
    turn's index, and must name every turn that has sampled tokens.
    """
    if isinstance(advantage, Mapping):
        values_T = [0.0] * len(episode.ids)
        for turn in episode.turns:
            for segment in turn.segments:
                if segment.origin == "model" and segment.tokens[1] > segment.tokens[0]:
                    start, end = segment.tokens
                    values_T[start:end] = [advantage[turn.index]] * (end - start)
        return [value if sampled else 0.0 for value, sampled in zip(values_T, episode.loss_mask, strict=True)]
    return [advantage if sampled else 0.0 for sampled in episode.loss_mask]
