"""A critic: a second model that estimates, before each step, the rewards still to come; for PPO.

Its body is a copy of the policy's at the start of the run (with an adapter, of the adapter alone: the model's own
weights are the policy's), its head one linear output that begins at zero. A turn is one step of the decision process:
the state is all that the model has read when the turn begins, the action what it writes in it. With `level: token` each
sampled token is a step, and a turn's reward is earned by its last one; what tools wrote is a part of the state alone
(verl's `compute_gae_advantage_return` with its mask). With r_k the reward of step k (the last one also earns what was
given for the whole episode), V_k the value before it, 0 after the last:

    δ_k = r_k + discount · V_(k+1) − V_k
    A_k = Σ_(j ≥ k) (discount · λ)^(j − k) · δ_j        generalised advantages, arXiv 1506.02438, equation 16
    R_k = A_k + V_k                                     what the critic learns

    loss = ½ · max((V − R)², (clip(V, V_old ± c) − R)²)   averaged over steps, PPO's with its values clipped

Advantages of a step are shifted to mean 0 and divided by their standard deviation over sampled tokens, with
`scale: advantage_std`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean, pvariance
from typing import Any

import torch

from toolrl.errors import CheckpointError, ConfigError, RunStoppedError
from toolrl.protocols import Credit
from toolrl.types import Episode, Group, Trajectory, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig, CriticConfig, OverlongConfig
from toolrl_plugin_torch.batch import MicroBatch, Sample, split
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.modes import train_without_noise
from toolrl_plugin_torch.objective.advantage import EPSILON
from toolrl_plugin_torch.objective.credit import overlong_penalty
from toolrl_plugin_torch.objective.kl_reward import KlEntry
from toolrl_plugin_torch.offload import offloaded, own_tensors
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sharding.dtensor import put
from toolrl_plugin_torch.sharding.single_process import SingleProcess

_OTHER = "Resume with the model and the model.lora that the run began with."


def gae(rewards: Sequence[float], values: Sequence[float], discount: float, gae_lambda: float) -> list[float]:
    """The advantage of each step of one episode; `values` are those before its steps."""
    advantages = [0.0] * len(rewards)
    later = following = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        difference = rewards[step] + discount * following - values[step]
        later = difference + discount * gae_lambda * later
        advantages[step], following = later, values[step]
    return advantages


def value_loss(
    values_N: torch.Tensor, old_values_N: torch.Tensor, returns_N: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the squared error of each value; with `clip` the greater of it and that of the value held near the old."""
    error_N = (values_N - returns_N).square()
    if clip is not None:
        near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (near_N - returns_N).square())
    return error_N / 2


@dataclass
class _Valued:
    """The steps of an episode, with the critic's values; zeros until it was asked."""

    episode: Episode
    trajectory: Trajectory
    turns: Sequence[Turn]
    """Those in which anything was sampled."""
    steps: Sequence[Sequence[int]]
    """Of each turn: the place of its first token, or those of all its sampled tokens."""
    values: Sequence[float]
    advantages: Sequence[float]

    @classmethod
    def of(cls, episode: Episode, level: str) -> _Valued:
        """Raises RunStoppedError for an episode that is no chain of turns."""
        trained = [it for it in episode.trajectories if it.trained and it.turns] or [Trajectory()]
        if len(trained) > 1:
            raise RunStoppedError(
                f"algorithm.critic: episode {episode.id} has {len(trained)} trajectories, and a critic values the "
                "turns of one",
                hint="Take an algorithm without a critic, for example `preset: grpo`.",
            )
        turns = [turn for turn in trained[0].turns if turn.sampled_tokens]
        places = [[at for of in turn.segments if of.origin == "model" for at in range(*of.tokens)] for turn in turns]
        steps = places if level == "token" else [of_turn[:1] for of_turn in places]
        nothing = [0.0] * sum(len(of_turn) for of_turn in steps)
        return cls(episode, trained[0], turns, steps, nothing, nothing)

    def sample(self) -> Sample:
        """What the critic learns from: at the token of each step the return, and the value as it was."""
        ids, length = self.trajectory.ids, len(self.trajectory.ids)
        mask, old, returns = [0] * length, [0.0] * length, [0.0] * length
        for place, value, advantage in zip(chain(*self.steps), self.values, self.advantages, strict=True):
            mask[place], old[place], returns[place] = 1, value, value + advantage
        return Sample(ids, mask, old, returns, self.trajectory.media)

    def rewards(self, overlong: OverlongConfig | None) -> list[float]:
        """What each step earned. A turn's last step earns the turn's reward; the divergence from the reference goes to
        the step of its token. A reward of another turn goes to the one before it, and what was given for the whole
        episode to the last step."""
        rewards = [[0.0] * len(of_turn) for of_turn in self.steps]
        if not rewards:
            return []
        indices = [turn.index for turn in self.turns]
        for entry in self.episode.rewards:
            place = len(indices) if entry.turn is None else bisect_right(indices, entry.turn)
            earned = rewards[max(place - 1, 0)]
            if entry.role not in (None, self.trajectory.role):
                continue
            if isinstance(entry, KlEntry) and entry.turn is not None and len(entry.tokens) == len(earned):
                earned[:] = [one + entry.weight * of for one, of in zip(earned, entry.tokens, strict=True)]
            else:
                earned[-1] += entry.weight * entry.value
        if overlong is not None:
            rewards[-1][-1] += overlong_penalty(sum(self.trajectory.loss_mask), overlong)
        return list(chain(*rewards))

    def by_turn(self, values: Iterable[float], level: str) -> Credit:
        """Values of the steps, by turn."""
        rest = iter(values)
        found = zip(self.turns, [list(islice(rest, len(of_turn))) for of_turn in self.steps], strict=True)
        return {turn.index: of_turn if level == "token" else of_turn[0] for turn, of_turn in found}


class Values(torch.nn.Module):  # type: ignore[misc]
    """A body and its head: the value before each of some tokens."""

    def __init__(self, body: Any, head: torch.nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, targets_N: torch.Tensor, **inputs: Any) -> torch.Tensor:
        """`targets_N`: places in the flattened batch. [N]."""
        hidden_BTH = self.body(**inputs)[0]
        hidden_NH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, targets_N - 1)
        values_N: torch.Tensor = self.head(hidden_NH.to(self.head.weight.dtype)).sum(dim=1)
        return values_N


class Critic:
    """Values of steps, and the advantages that follow from them. Use, once a step: `advantages`, then `update`."""

    def __init__(
        self,
        policy: PolicyModel,
        score: TokenScorer,
        settings: TrainerConfig,
        algorithm: AlgorithmConfig,
        *,
        pad_id: int,
        parallel: SingleProcess,
    ) -> None:
        if score.parts is None:
            raise ConfigError(
                f"algorithm.critic: no critic can be made of a {type(policy.model).__name__}: {score.fallback}",
                hint="Take an algorithm without a critic, for example `preset: grpo`.",
            )
        assert algorithm.critic is not None, "the config fills it in"
        base, head, _ = score.parts
        self._device = policy.device
        wide = torch.promote_types(head.weight.dtype, torch.float32)
        self.head = torch.nn.Linear(head.in_features, 1, device=self._device, dtype=wide)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self._parallel, self._ranks = parallel, parallel.ranks
        self._values = parallel.critic(Values, base, self.head)
        self.body = self._values.body
        named = [*self.body.named_parameters(prefix="body"), *self.head.named_parameters(prefix="head")]
        self._config: CriticConfig = algorithm.critic
        rate = {"learning_rate": self._config.learning_rate, "schedule": "constant", "warmup_steps": 0}
        self.optimizer = PolicyOptimizer(
            named, settings.model_copy(update=rate), offload="optimizer" in settings.offload
        )
        self._on_device = offloaded(
            "critic" in settings.offload,
            lambda: [*own_tensors(self.body, policy.model), *self.head.parameters()],
            self._device,
        )
        self._algorithm = algorithm
        self._settings = settings
        self._pad_id = pad_id
        self._valued: list[_Valued] = []
        train_without_noise(self.body)

    def advantages(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """By turn, or by its tokens, for each episode of each group; empty for those that failed. Follows
        `AdvantageEstimator`."""
        self._valued = [_Valued.of(episode, self._config.level) for group in groups for episode in group.scored]
        with self._on_device:
            self._value()
        shift, scale = self._normalisation()
        by_id: dict[int, Credit] = {
            id(item.episode): item.by_turn(
                [(advantage - shift) / scale for advantage in item.advantages], self._config.level
            )
            for item in self._valued
        }
        return [[by_id.get(id(episode), {}) for episode in group.episodes] for group in groups]

    def update(self) -> dict[str, float]:
        """Learn from the episodes that `advantages` saw last, in as many mini-batches and passes as the policy.

        Metrics: the mean loss of a step, the gradients' norm in the last optimizer step before clipping, the mean value
        before the step, and the share of the returns' variance that the values foresaw (left out where all returns are
        equal). Empty where nothing was sampled."""
        with self._on_device:
            return self._learn([item.sample() for item in self._valued])

    def _learn(self, samples: Sequence[Sample]) -> dict[str, float]:
        counts = [sample.trained_tokens for sample in samples]
        updates, errors, norms = [], list[torch.Tensor](), list[float]()
        for part in split(counts, self._settings.updates_per_step):
            batches, _ = self._batches([samples[index] for index in part])
            if batches:
                updates.append((batches, sum(counts[index] for index in part)))
        passes = updates * self._settings.epochs_per_step
        for batches, count in passes:
            errors += [self._backward(batch, count) for batch in batches]
            norms.append(self.optimizer.clip())
            self.optimizer.step(self._config.learning_rate)
        if not norms:
            return {}
        (error,) = self._ranks.sum([float(torch.stack(errors).sum())], "the critic's loss")
        values = [value for item in self._valued for value in item.values]
        error /= sum(count for _, count in passes)
        metrics = {"critic/loss": error, "critic/grad_norm": norms[-1], "critic/values": fmean(values)}
        explained = self._explained()
        return metrics if explained is None else metrics | {"critic/explained_variance": explained}

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer, for a checkpoint."""
        return {
            "body": self._trained_body(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state. Raises CheckpointError, or what torch raises, for one of another model."""
        if set(state["body"]) != set(self._trained_body()):
            raise CheckpointError("the critic in the checkpoint has other weights", hint=_OTHER)
        with self._on_device:
            for name, parameter in self._values.named_parameters():
                part, _, rest = name.partition(".")
                if rest in state[part]:  # What isn't trained is the policy's.
                    put(state[part][rest], parameter)
            self.optimizer.load_state_dict(state["optimizer"])

    def _trained_body(self) -> dict[str, Any]:
        """The body's tensors, without the frozen ones that it shares with the policy."""
        frozen = {name for name, parameter in self.body.named_parameters() if not parameter.requires_grad}
        return {name: tensor for name, tensor in self.body.state_dict().items() if name not in frozen}

    def _value(self) -> None:
        """Ask for the value before each step, and compute the advantages."""
        samples = [item.sample() for item in self._valued]
        for part in self._ranks.gather(self._values_of(samples), "the critic's values"):
            for index, values in part.items():
                self._valued[index].values = values
        for item in self._valued:
            rewards = item.rewards(self._algorithm.overlong)
            item.advantages = gae(rewards, item.values, self._algorithm.discount, self._config.gae_lambda)

    def _values_of(self, samples: Sequence[Sample]) -> dict[int, list[float]]:
        """The values at the marks of this rank's share of these, by position."""
        batches, mine = self._batches(samples)
        values: dict[int, list[float]] = {}
        for batch in batches:
            with torch.no_grad():
                found_N = self._forward(batch)
            if batch.samples:
                counts = batch.loss_mask_BT.sum(dim=1).tolist()
                for index, part in zip(batch.samples, found_N.split(counts), strict=True):
                    values[mine[index]] = part.tolist()
        return values

    def _normalisation(self) -> tuple[float, float]:
        """What to take off the advantages and to divide them by: their mean and deviation over sampled tokens."""
        advantages = torch.tensor([value for item in self._valued for value in item.advantages], dtype=torch.float64)
        if self._config.level == "turn":
            counts = [turn.sampled_tokens for item in self._valued for turn in item.turns]
            advantages = advantages.repeat_interleave(torch.tensor(counts, dtype=torch.int64))
        if self._algorithm.scale != "advantage_std" or len(advantages) < 2:
            return 0.0, 1.0
        return float(advantages.mean()), float(advantages.std()) + EPSILON

    def _batches(self, samples: Sequence[Sample]) -> tuple[list[MicroBatch], Sequence[int]]:
        """This rank's micro-batches, as many as any rank has; and which of the samples are its own."""
        budget = self._settings.tokens_per_microbatch
        return self._parallel.micro_batches(
            samples, range(len(samples)), budget, pad_id=self._pad_id, share=False, what="the critic's micro-batches"
        )

    def _forward(self, batch: MicroBatch) -> torch.Tensor:
        """The value before each marked token, [N], row by row."""
        batch = batch.to(self._device)
        inputs = {"input_ids": batch.input_ids_BT, "attention_mask": batch.attention_mask_BT, "use_cache": False}
        targets_N = batch.loss_mask_BT.reshape(-1).nonzero().squeeze(1)
        values_N: torch.Tensor = self._values(targets_N, **inputs, **batch.media)
        return values_N

    def _backward(self, batch: MicroBatch, count: int) -> torch.Tensor:
        """Add the gradients of one micro-batch out of `count` steps; the sum of its errors."""
        mask_BT, values_N = batch.loss_mask_BT, self._forward(batch)
        old_N, returns_N = (part[mask_BT].to(values_N) for part in (batch.rollout_logprobs_BT, batch.advantages_BT))
        loss_N = value_loss(values_N, old_N, returns_N, self._config.value_clip)
        if not batch.samples:
            loss_N = loss_N * 0.0
        (loss_N.sum() / count).backward()
        return loss_N.detach().double().sum()

    def _explained(self) -> float | None:
        """1 − var(R − V) / var(R) of the values before the update; None where all returns are equal."""
        values = [value for item in self._valued for value in item.values]
        advantages = [advantage for item in self._valued for advantage in item.advantages]
        returns = [value + advantage for value, advantage in zip(values, advantages, strict=True)]
        spread = pvariance(returns)
        return 1.0 - pvariance(advantages) / spread if spread > 1e-12 else None
