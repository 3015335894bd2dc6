"""The critic: advantages over turns worked out by hand, what it learns, and what a checkpoint keeps of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import CheckpointError, ConfigError
from toolrl.loop.ranks import ONE
from toolrl.types import Group, RewardEntry, Task
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.critic import Critic, gae, value_loss
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


@settings(max_examples=50, deadline=None)
@given(turns=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), max_size=6), discount=st.floats(0.1, 1))
def test_gae_at_its_ends(turns: list[tuple[float, float]], discount: float) -> None:
    """λ = 1: the discounted rewards to come less the value. λ = 0: the next turn's difference alone."""
    rewards, values = [reward for reward, _ in turns], [value for _, value in turns]
    for turn, (one, zero) in enumerate(
        zip(gae(rewards, values, discount, 1.0), gae(rewards, values, discount, 0.0), strict=True)
    ):
        to_come = sum(discount**k * reward for k, reward in enumerate(rewards[turn:]))
        following = values[turn + 1] if turn + 1 < len(values) else 0.0
        assert one == pytest.approx(to_come - values[turn], abs=1e-9)
        assert zero == pytest.approx(rewards[turn] + discount * following - values[turn], abs=1e-9)


def test_the_value_loss_by_hand() -> None:
    """Errors 1, 4 and 9; held within 0.5 of the old value, the last is 2.5 away from its return: still the less."""
    values, old, returns = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])
    assert value_loss(values, old, returns, None).tolist() == [0.5, 2.0, 4.5]
    assert value_loss(values, old, returns, 0.5).tolist() == [0.5, 6.125, 4.5]


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


def test_advantages_are_normalised_over_tokens(setting: Setting) -> None:
    """Turn 0 has two tokens, turn 1 one. Advantages 1, 1 and 0, 0: three tokens of each."""
    critic = setting.critic({"preset": "ppo", "critic": {"gae_lambda": 1.0}})
    ((first, second),) = critic.advantages([setting.group({None: 1.0}, {None: 0.0})])
    deviation = math.sqrt(6 * 0.25 / 5)
    assert first[0] == first[1] == pytest.approx(0.5 / deviation, rel=1e-3)
    assert second[0] == second[1] == pytest.approx(-0.5 / deviation, rel=1e-3)


def test_the_overlong_penalty_is_earned_by_the_last_turn(setting: Setting) -> None:
    critic = setting.critic({**PLAIN, "discount": 0.5, "overlong": {"tokens": 3, "buffer": 3, "penalty": 4.0}})
    assert critic.advantages([setting.group({})]) == [[{0: -1.9, 1: -4.0}]]


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


def test_it_learns_what_is_to_come(setting: Setting) -> None:
    critic = setting.critic({**PLAIN, "critic": {"learning_rate": 3e-3, "value_clip": None}})
    group = setting.group({None: 1.0}, {None: -1.0, 0: 0.5}, None)
    updates = []
    for _ in range(60):
        critic.advantages([group])
        updates.append(critic.update())
    first, last = updates[0], updates[-1]
    assert last["critic/loss"] < first["critic/loss"] / 100
    assert last["critic/explained_variance"] > 0.95
    ((one, two, failed),) = critic.advantages([group])
    assert max(abs(value) for turns in (one, two) for value in turns.values()) < 0.2
    assert failed == {}


def test_micro_batches_make_no_difference(setting: Setting) -> None:
    group = setting.group({None: 1.0}, {None: -1.0, 0: 0.5}, {1: 2.0})
    results = []
    for budget in (1, 1000):
        critic = setting.critic(PLAIN, tokens_per_microbatch=budget)
        critic.advantages([group])
        update = critic.update()
        results.append((update["critic/loss"], update["critic/grad_norm"]))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_it_learns_in_as_many_passes_as_the_policy(setting: Setting) -> None:
    """To the values and returns of before the first."""
    one, two = setting.critic(), setting.critic(epochs_per_step=2)
    for critic in (one, two):
        critic.advantages([setting.group({None: 1.0}, {None: -1.0, 0: 0.5}, {1: 2.0})])
    losses = [one.update()["critic/loss"], one.update()["critic/loss"]]
    assert two.update()["critic/loss"] == pytest.approx(sum(losses) / 2)
    assert all(two.body.state_dict()[name].equal(value) for name, value in one.body.state_dict().items())


def test_a_model_whose_head_cannot_be_taken_off_is_refused(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolrl_plugin_torch.logprob.probe_head", lambda model: "it names no output embeddings")
    with pytest.raises(ConfigError, match="no critic can be made of a Qwen3ForCausalLM: it names no output"):
        setting.critic()


def test_the_trainer_trains_both(setting: Setting) -> None:
    trainer = setting.trainer({"preset": "ppo"}, updates_per_step=2)
    before = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
    metrics = trainer.update([setting.group({None: 1.0}, {None: 0.0}, {0: 0.3})])
    assert metrics["updates"] == 2.0
    assert metrics["critic/loss"] > 0
    assert any(not before[name].equal(value) for name, value in trainer.policy.model.state_dict().items())
    assert trainer.critic is not None
    body = dict(trainer.critic.body.named_parameters())
    assert all(parameter.data_ptr() not in {p.data_ptr() for p in body.values()} for parameter in before.values())


def test_an_estimator_of_a_plugin_stands_in_the_place_of_the_critic(setting: Setting) -> None:
    class Mine:
        asked = 0

        def advantages(self, groups: Any) -> Any:
            self.asked += 1
            return [[1.0] * len(group.episodes) for group in groups]

    mine = Mine()
    trainer = setting.trainer({"preset": "ppo", "advantage": "mine"}, estimator=mine)
    metrics = trainer.update([setting.group({None: 1.0}, {None: 0.0})])
    assert trainer.critic is None
    assert mine.asked == 1
    assert "critic/loss" not in metrics


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
    assert rates == [None, None, *(pytest.approx(rate) for rate in (0.2, 0.4, 0.4, 0.2, 0.0))]


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

    with pytest.raises(CheckpointError, match="the checkpoint holds a critic, and the config asks for nothing besides"):
        saver(setting.trainer({"preset": "grpo"})).restore()
