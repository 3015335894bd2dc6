"""The divergence from the reference in the reward. `test_random_objectives.py` has its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toolrl.types import Group
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.credit import credit, is_flat
from toolrl_plugin_torch.objective.kl_reward import scored_episodes, with_kl

BETA = 0.05
REWARDS = (1.0, 0.0, None, 0.5)


def priced(group: Group, seed: int = 0) -> tuple[Group, list[np.ndarray]]:
    """The group under a drawn reference, and the divergence at each sampled token of the episodes that ended."""
    chance, divergences, reference = np.random.default_rng(seed), [], []
    for it in (episode.main for episode in scored_episodes([group])):
        sampled = np.array([of for of, bit in zip(it.logprobs, it.loss_mask, strict=True) if bit])
        reference.append((sampled + chance.normal(0, 0.5, len(sampled))).tolist())
        divergences.append(sampled - np.array(reference[-1]))
    (found,), metrics = with_kl([group], reference, BETA)
    assert metrics["kl"] == pytest.approx(np.concatenate(divergences).mean())
    assert metrics["kl/penalty"] == pytest.approx(-BETA * np.mean([of.sum() for of in divergences]))
    return found, divergences


def test_groups_are_flat_by_what_they_were_given(tiny: Any) -> None:
    """Else a group that teaches nothing but the divergence would be trained on, or sampled for."""
    algorithm = AlgorithmConfig(preset="dapo", kl_coef=BETA, kl_in="reward")
    same, other = (priced(tiny.group(rewards))[0] for rewards in ((1.0, 1.0), (1.0, 0.0)))
    assert [is_flat(group, algorithm) for group in (same, other)] == [True, False]
    assert {episode.group for episode in credit([same], algorithm).episodes} == set()
