"""The trainers on a tiny model: each update against one made by hand from full logits and torch's own AdamW."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.errors import RunStoppedError
from toolrl.protocols import LossTerms
from toolrl.types import Episode, Group
from toolrl_plugin_torch.base_trainer import within_memory
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.trainer import PolicyTrainer


class Setting:
    """A model, a trainer over it, and groups of episodes that the model could have sampled."""

    def __init__(self, tiny: Any, make_episode: Callable[..., Episode], directory: Path) -> None:
        self._tiny = tiny
        self._make_episode = make_episode
        self._directory = directory

    def policy(self, dtype: str = "float32") -> PolicyModel:
        return self._tiny.policy(dtype=dtype)  # type: ignore[no-any-return]

    def trainer(self, policy: PolicyModel, algorithm: dict[str, Any] | None = None, **settings: Any) -> PolicyTrainer:
        settings = {"max_grad_norm": 1e9, **settings}
        return self._tiny.trainer(self._directory, policy, algorithm, **settings)  # type: ignore[no-any-return]

    def episode(self, ids: Sequence[int], mask: Sequence[int], reward: float, **fields: Any) -> Episode:
        return self._make_episode(mask, reward=reward, ids=tuple(ids), **fields)

    def group(self, rewards: Sequence[float | None], seed: int = 0) -> Group:
        return self._tiny.group(rewards, seed)  # type: ignore[no-any-return]

    def logprobs(self, model: Any, episode: Episode) -> torch.Tensor:
        """Of the sampled tokens, by the model's full logits."""
        ids = torch.tensor([episode.ids])
        logprobs_BT, _ = self._tiny.naive(model, ids, torch.ones_like(ids))
        return logprobs_BT[0][torch.tensor(episode.loss_mask).bool()]

    def total(self, model: Any, episode: Episode) -> float:
        with torch.no_grad():
            return float(self.logprobs(model, episode).sum())


@pytest.fixture
def setting(tiny: Any, make_episode: Any, tmp_path: Path) -> Setting:
    return Setting(tiny, make_episode, tmp_path)


def weights(policy: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}


def test_a_plugins_loss_sees_samples_without_advantage_too(setting: Setting) -> None:
    class Likelier:
        """Makes everything likelier, whatever its advantage."""

        def token_losses(self, terms: Any) -> Any:
            return -terms.logprobs_BT

    policy = setting.policy()
    trainer = setting.trainer(policy, {"policy_loss": "likelier"}, custom_loss=Likelier())
    group = setting.group([1.0, 1.0])
    before = [setting.total(policy.model, episode) for episode in group.episodes]
    metrics = trainer.update([group])
    assert metrics["updates"] == 1.0
    assert all(setting.total(policy.model, e) > old for e, old in zip(group.episodes, before, strict=True))

    class ByAdvantage(Likelier):
        skips_zero_advantages = True

    trainer = setting.trainer(setting.policy(), {"policy_loss": "likelier"}, custom_loss=ByAdvantage())
    assert trainer.update([group])["updates"] == 0.0


@pytest.mark.parametrize(
    ("preset", "rewards"),
    [("grpo", [1.0, 1.0, 1.0]), ("dapo", [0.0, 0.0]), ("dr_grpo", [None, None, 1.0])],
)
def test_a_step_without_spread_changes_no_weight(setting: Setting, preset: str, rewards: list[float]) -> None:
    """Not by momentum and not by weight decay either, which the step before has set going."""
    policy = setting.policy()
    trainer = setting.trainer(policy, {"preset": preset}, weight_decay=0.5, updates_per_step=2)
    trainer.update([setting.group([1.0, 0.0])])
    before, state = weights(policy), copy.deepcopy(trainer.optimizer.state_dict()["adamw"]["state"])
    metrics = trainer.update([setting.group(rewards), setting.group([2.0, 2.0, 2.0], seed=1)])
    assert trainer.step == 2
    assert all(before[name].equal(value) for name, value in weights(policy).items())
    for index, entry in trainer.optimizer.state_dict()["adamw"]["state"].items():
        assert all(torch.equal(value, state[index][name]) for name, value in entry.items())
    assert (metrics["updates"], metrics["groups/flat"]) == (0.0, 1.0)
    assert metrics["entropy"] == pytest.approx(0.5), "what was sampled counts, trained on or not"
    assert not {"loss", "ratio/mean", "ratio/max", "logprob_mismatch/max"} & metrics.keys()
    assert "grad_norm" not in metrics
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_the_expected_entropy_is_that_of_all_sampled_tokens_trained_on_or_not(setting: Setting) -> None:
    """Of a flat group's one token, each of the vocabulary as often as the policy samples it; the other group, whose
    tokens have −log p = 0.5, is trained on."""
    policy = setting.policy()
    trainer, prompt, other = setting.trainer(policy), [3, 4, 5], setting.group([1.0, 0.0])
    with torch.no_grad():
        logprobs = policy.model(torch.tensor([prompt])).logits[0, -1].double().log_softmax(0).tolist()
    exact = -sum(math.exp(logprob) * logprob for logprob in logprobs)
    expected = 0.0
    for token, logprob in enumerate(logprobs):
        episode = setting.episode([*prompt, token], [0, 0, 0, 1], 1.0, logprobs=(0.0, 0.0, 0.0, logprob))
        metrics = trainer.update([Group("g", episode.task, (episode, episode)), other])
        expected += math.exp(logprob) * metrics["entropy"]
    count = sum(episode.sampled_tokens for episode in other.episodes)
    assert expected == pytest.approx((2 * exact + count * 0.5) / (2 + count), rel=1e-9)


@pytest.mark.parametrize("other", [{"kl_coef": 1e-12}, {"entropy_coef": 1e-12}], ids=str)
@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
def test_what_is_measured_does_not_depend_on_what_else_the_loss_holds(
    setting: Setting, surrogate: str, other: dict[str, float]
) -> None:
    """Flat groups are computed for a KL or entropy term only."""
    groups = [setting.group([1.0, 0.0]), setting.group([1.0, 1.0, 1.0], seed=1), setting.group([0.0, 1.0, 0.5], seed=2)]
    algorithm = {"preset": "grpo", "surrogate": surrogate, "importance": {"cap": 1.5}, "rejection": {"level": "token"}}
    found = []
    for more in ({}, other):
        trainer = setting.trainer(setting.policy(), {**algorithm, **more}, updates_per_step=2)
        metrics = trainer.update(groups)
        found.append({name: value for name, value in metrics.items() if not name.startswith(("loss", "kl"))})
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-9)
    assert {"entropy", "importance/rejected", "clip/low", "logprob_mismatch/mean", "ratio/max"} <= found[0].keys()


def test_the_mismatch_is_of_tokens_that_the_trained_weights_sampled(setting: Setting) -> None:
    """Of older tokens the distance holds the policy's changes as well: it has a name of its own."""
    trainer = setting.trainer(setting.policy(), learning_rate=0.1)
    group = setting.group([1.0, 0.0])
    first = trainer.update([group])
    assert first["logprob_mismatch/max"] > 0
    assert "staleness/distance" not in first
    stale = trainer.update([group])
    assert not {name for name in stale if name.startswith("logprob_mismatch/")}
    assert stale["staleness/distance"] > 0
    fresh = replace(group, episodes=tuple(_sampled_now(it, 2) for it in group.episodes))
    both = trainer.update([group, fresh])
    assert {"logprob_mismatch/mean", "logprob_mismatch/max", "staleness/distance"} <= both.keys()


def _sampled_now(episode: Any, version: int) -> Any:
    """The episode, its second turn sampled by this version."""
    whole = episode.main
    later = whole.turns[1].segments[0].tokens[0]
    sampled = enumerate(zip(whole.loss_mask, whole.weight_versions, strict=True))
    versions = [version if bit and place >= later else old for place, (bit, old) in sampled]
    return replace(episode, trajectories=(replace(whole, weight_versions=tuple(versions)),))


def test_bfloat16_trains_on_float32_masters(setting: Setting) -> None:
    policy = setting.policy("bfloat16")
    trainer = setting.trainer(policy, {"preset": "grpo", "kl_coef": 0.01}, learning_rate=1e-4, updates_per_step=2)
    group = setting.group([1.0, 0.0, 0.0, 1.0])
    before = [setting.total(policy.model, episode) for episode in group.episodes]
    for _ in range(6):
        metrics = trainer.update([group])
        assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())
    after = [setting.total(policy.model, episode) for episode in group.episodes]
    gains = [new - old for new, old in zip(after, before, strict=True)]
    assert gains[0] + gains[3] > 0.5 > -0.5 > gains[1] + gains[2]
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    masters = trainer.optimizer.state_dict()["masters"]
    for name, parameter in policy.model.named_parameters():
        assert masters[name].dtype == torch.float32
        assert parameter.equal(masters[name].bfloat16())


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step_counts(setting: Setting) -> None:
    policy = setting.policy()
    trainer = setting.trainer(policy)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[5].fill_(float("inf"))
    before = weights(policy)
    group = setting.group([1.0, 0.0])
    ids = (5, *group.episodes[0].ids[1:])
    broken = setting.episode(ids, group.episodes[0].loss_mask, 1.0)
    with pytest.raises(RunStoppedError, match="gradients aren't finite"):
        trainer.update([Group(group.id, group.task, (broken, group.episodes[1]))])
    assert (trainer.step, trainer.whole) == (0, True)
    assert all(before[name].equal(value) for name, value in weights(policy).items())


# Fine-tuning.


def test_fine_tuning_lowers_the_mean_loss_of_a_token(tiny: Any, setting: Setting, tmp_path: Path) -> None:
    policy = setting.policy()
    episodes = setting.group([0.0, 0.0, 0.0]).episodes
    expected = -torch.cat([setting.logprobs(policy.model, episode) for episode in episodes]).mean()
    trainer = tiny.fine_tuner(tmp_path, policy, learning_rate=3e-3, steps=30, max_grad_norm=1e9)
    demonstrations = [Demonstration(episode.ids, episode.loss_mask) for episode in episodes]
    losses = []
    for step in range(30):
        metrics = trainer.update(demonstrations)
        losses.append(metrics["loss"])
        assert trainer.step == step + 1
    assert losses[0] == pytest.approx(expected.item(), rel=1e-5)
    assert losses[-1] < losses[0] / 4
    assert metrics["tokens/trained"] == sum(episode.sampled_tokens for episode in episodes)


def test_a_step_that_breaks_half_way_is_not_whole(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = setting.trainer(setting.policy(), {"preset": "grpo"}, updates_per_step=2)
    groups = [setting.group([1.0, 0.0]), setting.group([0.0, 1.0], seed=1)]
    step, done = trainer.optimizer.step, []

    def breaks_on_the_second(rate: float) -> float:
        if done:
            raise RuntimeError("out of memory")
        done.append(rate)
        return step(rate)

    monkeypatch.setattr(trainer.optimizer, "step", breaks_on_the_second)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.update(groups)
    assert (trainer.step, trainer.whole) == (0, False)
    monkeypatch.setattr(trainer.optimizer, "step", step)
    trainer.update(groups)
    assert (trainer.step, trainer.whole) == (1, True)


def test_memory_that_ran_out_says_what_to_make_smaller() -> None:
    @within_memory()
    def update() -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
        )

    with pytest.raises(RunStoppedError, match="ran out: CUDA out of memory. Tried to allocate 2.00 GiB") as caught:
        update()
    assert "tokens_per_microbatch" in str(caught.value.hint)
    assert "GPU 0" not in caught.value.message


class Asks:
    """A plugin's loss over everything that a loss can be given."""

    needs = ("reference", "entropy")

    def __init__(self) -> None:
        self.terms: LossTerms | None = None

    def token_losses(self, terms: LossTerms) -> Any:
        self.terms = terms
        return terms.logprobs_BT - terms.reference_logprobs_BT - terms.teacher_logprobs_BT - terms.entropy_BT


@pytest.mark.parametrize("share", [False, True])
def test_a_loss_is_given_what_it_needs(setting: Setting, share: bool) -> None:
    loss = Asks()
    trainer = setting.trainer(setting.policy(), custom_loss=loss, share_prefix=share)
    group = setting.group([1.0, 0.0])
    scored = [
        replace(it, trajectories=(replace(it.trajectories[0], teacher_logprobs=tuple(-1.0 for _ in it.ids)),))
        for it in group.episodes
    ]
    trainer.update([replace(group, episodes=tuple(scored))])
    terms = loss.terms
    assert terms is not None
    trained_BT = terms.mask_BT
    torch.testing.assert_close(terms.reference_logprobs_BT, terms.logprobs_BT.detach())
    assert terms.teacher_logprobs_BT[trained_BT].eq(-1.0).all()
    assert (terms.entropy_BT[trained_BT] > 0).all()
    assert terms.entropy_BT.requires_grad
