"""The divergence from the reference in the reward: by hand, and as verl and TRL take it off."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toolrl.types import Episode, Group
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.credit import credit, is_flat
from toolrl_plugin_torch.objective.kl_reward import KlEntry, scored_episodes, with_kl

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


def rloo_of_trl(rewards: Any, per_token_kl: Sequence[Any], beta: float) -> Any:
    """TRL 1.16, `RLOOTrainer._generate_and_score_completions` of trl/trainer/rloo_trainer.py, for one group."""
    rewards = rewards - beta * np.array([kl.sum(-1) for kl in per_token_kl])
    return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)


def grpo_of_verl(scores: Any, kld: Sequence[Any], beta: float) -> Any:
    """verl, `apply_kl_penalty` of trainer/ppo/ray_trainer.py, then `compute_grpo_outcome_advantage` of
    trainer/ppo/core_algos.py, without division by the deviation."""
    token_level_scores = [np.append(np.zeros(len(of) - 1), score) for score, of in zip(scores, kld, strict=True)]
    token_level_rewards = [of - beta * kl for of, kl in zip(token_level_scores, kld, strict=True)]
    summed = np.array([of.sum(-1) for of in token_level_rewards])
    return summed - summed.mean()


@pytest.mark.parametrize(("preset", "theirs"), [("rloo", rloo_of_trl), ("dr_grpo", grpo_of_verl)])
def test_an_episode_loses_the_sum_over_its_tokens(tiny: Any, preset: Any, theirs: Any) -> None:
    group, divergences = priced(tiny.group(REWARDS))
    given = np.array([reward for reward in REWARDS if reward is not None])
    credited = credit([group], AlgorithmConfig(preset=preset, kl_coef=BETA, kl_in="reward"))
    assert credited.advantages == pytest.approx(theirs(given, divergences, BETA).tolist(), abs=1e-9)


def test_groups_are_flat_by_what_they_were_given(tiny: Any) -> None:
    """Else a group that teaches nothing but the divergence would be trained on, or sampled for."""
    algorithm = AlgorithmConfig(preset="dapo", kl_coef=BETA, kl_in="reward")
    same, other = (priced(tiny.group(rewards))[0] for rewards in ((1.0, 1.0), (1.0, 0.0)))
    assert [is_flat(group, algorithm) for group in (same, other)] == [True, False]
    assert {episode.group for episode in credit([same], algorithm).episodes} == set()


class Notes:
    """An estimator that notes what it sees."""

    seen: list[Episode]

    def advantages(self, groups: Sequence[Group]) -> Any:
        self.seen = [episode for group in groups for episode in group.scored]
        return [[1.0] * len(group.episodes) for group in groups]


@pytest.mark.parametrize("share", [False, True])
def test_each_token_is_scored_by_the_reference(tiny: Any, tmp_path: Path, share: bool) -> None:
    """By the model at the start, also after updates, in whatever micro-batches; what was recorded stays as it was."""
    estimator, policy = Notes(), tiny.policy(tiny.model("qwen3", dtype="float64"))
    start = copy.deepcopy(policy.model)
    algorithm = {"preset": "grpo", "advantage": "mine", "kl_coef": BETA, "kl_in": "reward"}
    own = {"tokens_per_microbatch": 60, "share_prefix": share, "temperature": 1.3, "estimator": estimator}
    trainer = tiny.trainer(tmp_path, policy, algorithm, **own)
    step = [tiny.group(REWARDS, 1, prompt=40), tiny.group((1.0, 0.0), 2)]
    for _ in range(2):
        metrics = trainer.update(step)
    assert "loss/policy" in metrics
    assert metrics["loss/policy"] == metrics["loss/total"], "it isn't in the loss as well"
    divergences = []
    for episode in estimator.seen:
        ids = torch.tensor([episode.ids])
        with torch.no_grad():
            expected_T = tiny.naive(start, ids, torch.ones_like(ids), 1.3)[0][0].tolist()
        entries = [entry for entry in episode.rewards if isinstance(entry, KlEntry)]
        assert [entry.turn for entry in entries] == [0, 1]
        for entry, turn in zip(entries, episode.turns, strict=True):
            places = range(*turn.segments[0].tokens)
            found = [episode.logprobs[place] - expected_T[place] for place in places]
            assert entry.tokens == pytest.approx([-value for value in found], abs=1e-6)
            assert (entry.value, entry.weight) == (pytest.approx(sum(entry.tokens)), BETA)
            divergences += found
    assert metrics["kl"] == pytest.approx(np.mean(divergences), abs=1e-6)
    assert all(len(episode.rewards) == 1 for group in step for episode in group.episodes)
