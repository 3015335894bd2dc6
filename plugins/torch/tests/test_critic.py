"""The critic: advantages over turns worked out by hand, what it learns, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toolrl.errors import CheckpointError
from toolrl.loop.ranks import ONE
from toolrl.types import Group, RewardEntry, Task
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.critic import Critic, gae
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver
from toolrl_plugin_torch.objective.kl_reward import with_kl
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.sharding.single_process import SingleProcess
from toolrl_plugin_torch.trainer import PolicyTrainer

PLAIN = {"preset": "ppo", "scale": "none"}
MASK = (0, 0, 1, 1, 0, 1)
"""Two turns, that begin at tokens 2 and 5."""


def test_gae_by_hand() -> None:
    """δ = 1 + 0.5 · 4 − 2 = 1 and 3 − 4 = −1; A_0 = 1 + 0.5 · 0.5 · −1."""
    assert gae([1.0, 3.0], [2.0, 4.0], 0.5, 0.5) == [0.75, -1.0]


def gae_of_verl(token_level_rewards: Any, values: Any, response_mask: Any, gamma: float, lam: float) -> Any:
    """verl, `compute_gae_advantage_return` of trainer/ppo/core_algos.py: whitened advantages, and returns. [B, T]."""
    nextvalues = lastgaelam = np.zeros(len(values))
    advantages_reversed = []
    for t in reversed(range(token_level_rewards.shape[-1])):
        delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam_ = delta + gamma * lam * lastgaelam
        # skip values and TD-error on observation tokens
        nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues
        lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam
        advantages_reversed.append(lastgaelam)
    advantages = np.stack(advantages_reversed[::-1], axis=1)
    kept = advantages[response_mask.astype(bool)]
    return (advantages - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8), advantages + values


def value_loss_of_verl(vpreds: Any, returns: Any, values: Any, response_mask: Any, cliprange_value: float) -> float:
    """verl, `compute_value_loss` of trainer/ppo/core_algos.py, with `token-mean`."""
    vpredclipped = np.clip(vpreds, values - cliprange_value, values + cliprange_value)
    clipped_vf_losses = np.maximum((vpreds - returns) ** 2, (vpredclipped - returns) ** 2)
    return float(0.5 * (clipped_vf_losses * response_mask).sum() / response_mask.sum())


class Setting:
    """A tiny policy, its critic, and episodes of two turns."""

    def __init__(self, tiny: Any, make_episode: Callable[..., Any], folder: Path) -> None:
        self._tiny = tiny
        self._make_episode = make_episode
        self.folder = folder

    def critic(self, algorithm: dict[str, Any] | None = None, dtype: str = "float32", **fields: Any) -> Critic:
        policy = self._tiny.policy(dtype=dtype)
        return Critic(
            policy,
            TokenScorer(policy.model),
            TrainerConfig(max_grad_norm=1e9, **fields),
            AlgorithmConfig(**(algorithm or PLAIN)),
            pad_id=0,
            parallel=SingleProcess(ONE),
        )

    def trainer(self, algorithm: dict[str, Any] | None = None, **fields: Any) -> PolicyTrainer:
        return self._tiny.trainer(self.folder, None, algorithm or PLAIN, **fields)  # type: ignore[no-any-return]

    def group(self, *rewards: dict[int | None, float] | None) -> Group:
        """Each episode's rewards by turn, None for the whole; None for one that failed."""
        episodes = []
        for index, given_ in enumerate(rewards):
            entries = tuple(RewardEntry(turn, "reward:r", value) for turn, value in (given_ or {}).items())
            ids = tuple(range(3 + index, 3 + index + len(MASK)))
            episodes.append(
                self._make_episode(MASK, ids=ids, rewards=entries, index=index, failed=given_ is None, id=f"g#{index}")
            )
        return Group("g", Task("g", ()), tuple(episodes))


@pytest.fixture
def setting(tiny: Any, make_episode: Any, tmp_path: Path) -> Setting:
    return Setting(tiny, make_episode, tmp_path)


def test_a_new_critic_expects_nothing(setting: Setting) -> None:
    """All values are 0: what is left are the rewards to come, the whole episode's with the last turn."""
    critic = setting.critic({**PLAIN, "discount": 0.5, "critic": {"gae_lambda": 1.0}})
    groups = [setting.group({0: 1.0, None: 2.0}, None, {}), setting.group({1: -1.0})]
    assert critic.advantages(groups) == [[{0: 2.0, 1: 2.0}, {}, {0: 0.0, 1: 0.0}], [{0: -0.5, 1: -1.0}]]
    assert critic.advantages([setting.group(None, None)]) == [[{}, {}]]
    assert critic.update() == {}, "of nothing nothing is learned"


def values_of(critic: Critic, group: Group) -> Any:
    """Before each token but the first, [B, T]."""
    with torch.no_grad():
        hidden_BTH = critic.body(input_ids=torch.tensor([episode.ids for episode in group.episodes]))[0]
        return critic.head(hidden_BTH[:, :-1])[:, :, 0].numpy()


@pytest.mark.parametrize("scale", ["none", "advantage_std"])
def test_tokens_are_valued_as_in_verl(tiny: Any, setting: Setting, scale: str) -> None:
    """With rewards of episodes and turns, the divergence from a reference, what a tool wrote, and a moved value."""
    algorithm = {"preset": "ppo", "scale": scale, "discount": 0.97, "critic": {"level": "token", "learning_rate": 1e-2}}
    critic = setting.critic(algorithm, dtype="float64", tokens_per_microbatch=30)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    plain, chance = tiny.group((1.0, 0.0, 0.5), lengths=(12,)), np.random.default_rng(0)
    steps = [replace(it, rewards=(*it.rewards, RewardEntry(0, "step:tool", 0.3))) for it in plain.episodes]
    mask = np.array([it.loss_mask for it in steps])[:, 1:]
    kl = chance.normal(0, 0.1, mask.shape) * mask
    reference = [(-0.5 - row)[bits.astype(bool)].tolist() for row, bits in zip(kl, mask, strict=True)]
    (group,), _ = with_kl([replace(plain, episodes=tuple(steps))], reference, 1.0)
    rewards = np.zeros(mask.shape)
    for row, episode in enumerate(steps):
        ends = [turn.segments[-1].tokens[1] - 2 for turn in episode.turns]
        rewards[row, ends[0]], rewards[row, ends[1]] = 0.3, episode.rewards[0].value
    values = values_of(critic, group)
    whitened, returns = gae_of_verl(rewards - kl, values, mask, 0.97, 0.95)
    advantages = (returns - values)[mask.astype(bool)]

    ((*found,),) = critic.advantages([group])
    ours = np.concatenate([of_turn for credit in found for of_turn in credit.values()])
    if scale == "none":
        assert ours == pytest.approx(advantages, abs=1e-6)
    else:  # The deviation has 1e-4 added to it, in the place of 1e-8 under the root.
        spread = advantages.std(ddof=1)
        theirs = whitened[mask.astype(bool)] * np.sqrt(spread**2 + 1e-8)
        assert ours * (spread + 1e-4) == pytest.approx(theirs, abs=1e-6)
    for _ in range(3):
        expected = value_loss_of_verl(values_of(critic, group), returns, values, mask, 0.2)
        assert critic.update()["critic/loss"] == pytest.approx(expected, abs=1e-6)
    assert np.abs(values_of(critic, group) - values)[mask.astype(bool)].max() > 0.2, "values were held"


def test_the_policy_and_its_schedule_wait_until_the_critic_is_warm(setting: Setting) -> None:
    trainer = setting.trainer(
        {"preset": "ppo", "critic": {"warmup_steps": 2}},
        learning_rate=0.4,
        warmup_steps=2,
        schedule="linear",
        steps=7,
    )
    before = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
    group = setting.group({None: 1.0}, {None: 0.0})
    warm = [trainer.update([group]) for _ in range(2)]
    assert all(metrics["updates"] == 0.0 < metrics["critic/grad_norm"] for metrics in warm)
    assert all(before[name].equal(value) for name, value in trainer.policy.model.state_dict().items())
    later = [trainer.update([group]) for _ in range(5)]
    assert [metrics["updates"] for metrics in later] == [1.0] * 5
    rates = [metrics.get("learning_rate") for metrics in warm + later]
    assert rates == [None, None, *(pytest.approx(rate) for rate in (0.2, 0.4, 0.4, 0.8 / 3, 0.4 / 3))]


def test_a_checkpoint_goes_on_exactly(setting: Setting) -> None:
    """One trainer makes three steps; another takes up the first's checkpoint after two and makes the third."""
    groups = [setting.group({None: 1.0, 0: 0.1 * n}, {None: 0.0}, {1: 0.3}) for n in range(3)]

    def saver(trainer: PolicyTrainer) -> Saver:
        return Saver(trainer, setting.folder / "checkpoints", 2, FixedRows(1), {})

    whole = setting.trainer()
    for group in groups[:2]:
        whole.update([group])
    saver(whole).save()
    expected = whole.update([groups[2]])

    resumed = setting.trainer()
    assert saver(resumed).restore() == 2
    assert resumed.update([groups[2]]) == expected
    assert whole.critic is not None
    assert resumed.critic is not None
    for name, value in whole.critic.body.state_dict().items():
        assert resumed.critic.body.state_dict()[name].equal(value)

    with pytest.raises(CheckpointError, match="holds .'critic'. besides the policy"):
        saver(setting.trainer({"preset": "grpo"})).restore()
