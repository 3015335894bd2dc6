"""The trainers: they update the policy from a step's groups, or from a batch of demonstrations.

    groups → credit → samples → updates of the step → micro-batches → log-probabilities → loss → optimizer step

The numerics are pure functions (`advantage`, `batch`, `logprob`, `loss`); the trainers call them in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import DataError
from toolrl.loop.ranks import ONE, Ranks
from toolrl.protocols import AdvantageEstimator, PolicyLoss
from toolrl.types import Group
from toolrl_plugin_torch.algorithm import AlgorithmConfig, ReferenceConfig
from toolrl_plugin_torch.base_trainer import BaseTrainer, within_memory
from toolrl_plugin_torch.batch import MicroBatch, Sample, balance, episode_samples, supervised_sample
from toolrl_plugin_torch.critic import Critic
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.objective.credit import CreditedEpisodes, credit, sampled_entropy
from toolrl_plugin_torch.objective.distillation import distillation_metrics, taught
from toolrl_plugin_torch.objective.kl_reward import scored_episodes, with_kl
from toolrl_plugin_torch.objective.loss import (
    LossStatistics,
    Normaliser,
    mismatch_statistics,
    policy_loss,
    supervised_loss,
    trained_tokens,
)
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.rotary import rope_types
from toolrl_plugin_torch.routes import Routers


@dataclass
class _Update:
    """One optimizer step: its micro-batches and the normaliser of their losses."""

    batches: list[MicroBatch]
    normaliser: Normaliser
    old: list[torch.Tensor] | None = None
    """By micro-batch: log-probabilities before the step's first update; None where this is the first."""
    reference: list[torch.Tensor] | None = None
    """By micro-batch: log-probabilities under the reference; None where there is none."""


class Rank0Estimator:
    """Runs an `AdvantageEstimator` on the first rank alone and broadcasts its advantages: it may draw random numbers or
    call a server."""

    def __init__(self, estimator: AdvantageEstimator, ranks: Ranks) -> None:
        self.label = type(estimator).__name__
        self._estimator, self._ranks = estimator, ranks

    def advantages(self, groups: Sequence[Group]) -> Any:
        """As the estimator's."""
        return self._ranks.by_first(lambda: [list(of) for of in self._estimator.advantages(groups)], "the advantages")


class PolicyTrainer(BaseTrainer):
    """Policy-gradient updates from groups of episodes.

    `temperature` is the one that episodes are sampled at; `longest` the most tokens an episode can sample in one
    trajectory, which the `constant` aggregation divides by. `estimator` and `custom_loss` stand for what the algorithm
    builds in.
    """

    def __init__(
        self,
        policy: PolicyModel,
        settings: TrainerConfig,
        algorithm: AlgorithmConfig,
        directory: Path,
        *,
        temperature: float,
        longest: int,
        estimator: AdvantageEstimator | None = None,
        custom_loss: PolicyLoss | None = None,
        ranks: Ranks = ONE,
        cpu_offload: bool = False,
    ) -> None:
        needs = getattr(custom_loss, "needs", ())
        super().__init__(
            policy,
            settings,
            directory,
            reference=algorithm.reference or (ReferenceConfig() if algorithm.kl_coef or "reference" in needs else None),
            ranks=ranks,
            cpu_offload=cpu_offload,
            sequence_parallel=settings.sequence_parallel,
        )
        self._trainer = settings
        if settings.router_replay:
            self.routers = Routers(self._score.model, "trainer.router_replay")
        self._algorithm = algorithm
        self._estimator = estimator and Rank0Estimator(estimator, ranks)
        self._custom_loss = custom_loss
        self._in_loss = algorithm.kl_in == "loss" or "reference" in needs
        self._entropy = bool(algorithm.entropy_coef) or "entropy" in needs
        self._temperature = temperature
        self._longest = longest
        if algorithm.baseline == "critic" and estimator is None:
            self.critic = Critic(
                policy, self._score, settings, algorithm, pad_id=self._pad_id(), parallel=self._parallel
            )
            assert algorithm.critic is not None, "the config fills it in"
            self.skipped_steps = algorithm.critic.warmup_steps

    @within_memory()
    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step: all updates from its groups, and their metrics. A step without any gradient changes nothing."""
        self.ranks.use_device()
        groups, of_kl = self._with_kl(groups)
        credited = credit(groups, self._algorithm, self.critic or self._estimator)
        updates = self._planned(credited) if self.step >= self.skipped_steps else []
        passes = updates * self._trainer.epochs_per_step
        if len(passes) > 1 and self._algorithm.old_logprobs == "recomputed":
            # Later updates of the step start from another policy than the one that sampled.
            for update in updates:
                update.old = [self._logprobs(self._score, batch) for batch in update.batches]
        if self._reference is not None and self._in_loss:
            with self._reference.on_device:  # Before any update, so once a step.
                for update in updates:
                    update.reference = [self._logprobs(self._reference.score, batch) for batch in update.batches]
        measured, metrics = LossStatistics(), dict[str, float]()
        for number, update in enumerate(passes):
            metrics = self._one_update(update, measured, first=number == 0)
        if self.critic is not None:
            self.whole = False
            metrics |= self.critic.update()
        mine = measured.cpu() if self._parallel.counts else LossStatistics()
        of_ranks = self.ranks.gather(mine, f"statistics of step {self.step + 1}")
        if self._reference is not None:
            self._reference.sync(self.step + 1)
        self._complete()
        metrics |= {**sampled_entropy(groups), **distillation_metrics(groups), **credited.metrics, **of_kl}
        metrics["updates"] = float(len(passes))
        return {**_loss_metrics(LossStatistics.total(of_ranks)), **metrics}

    def _with_kl(self, groups: Sequence[Group]) -> tuple[Sequence[Group], dict[str, float]]:
        """The groups, their rewards less the divergence from the reference with `kl_in: reward`, and its metrics."""
        if self._reference is None or self._algorithm.kl_in == "loss":
            return groups, {}
        trained = [(episode.group, it) for episode in scored_episodes(groups) for it in episode_samples(episode, 0.0)]
        batches, mine = self._micro_batches([sample for _, sample in trained], [group for group, _ in trained])
        logprobs: dict[int, list[float]] = {}
        with self._reference.on_device:
            for batch in batches:
                logprobs_BT = self._logprobs(self._reference.score, batch).cpu()
                for row, index in enumerate(batch.samples):
                    logprobs[mine[index]] = logprobs_BT[row, batch.loss_mask_BT[row]].tolist()
        for part in self.ranks.gather(logprobs, f"the reference of step {self.step + 1}"):
            logprobs |= part
        return with_kl(groups, [logprobs.get(place, []) for place in range(len(trained))], self._algorithm.kl_coef)

    def _planned(self, credited: CreditedEpisodes) -> list[_Update]:
        """The mini-batches of a step, without those that move nothing."""
        samples = [
            episode_samples(episode, advantage, self.routers)
            for episode, advantage in zip(credited.episodes, credited.advantages, strict=True)
        ]
        if (distillation := self._algorithm.distillation) is not None:
            samples = [[taught(sample, distillation) for sample in of_episode] for of_episode in samples]
        groups_of = [episode.group for episode in credited.episodes]
        costs = [_tokens(of_episode) for of_episode in samples]
        even = self._algorithm.loss_aggregation != "token_mean"
        parts = balance(groups_of, costs, self._trainer.updates_per_step, together=self.shares, even=even)
        plans = [self._plan([samples[index] for index in part], [groups_of[index] for index in part]) for part in parts]
        return [plan for plan in plans if plan.batches]

    def _plan(self, episodes: Sequence[Sequence[Sample]], groups: Sequence[str]) -> _Update:
        """Micro-batches of the episodes' samples that move the policy, normalised over all samples of all ranks.

        Without KL and entropy terms an advantage of zero gives no gradient, so such a sample needs no forward pass,
        unless a plugin's loss (without `skips_zero_advantages`) or the term of its teacher makes something of it. An
        update of none is left out whole: momentum and weight decay would move the policy even so.
        """
        tokens = [_tokens(samples) for samples in episodes]
        normaliser = Normaliser.of(tokens, self._algorithm.loss_aggregation, length=self._longest)
        # Ranks get whole groups, or where these are fewer than ranks whole episodes.
        whole = len(set(groups)) >= self.ranks.size
        samples = [
            (sample, group if whole else (group, number))
            for number, (of_episode, group) in enumerate(zip(episodes, groups, strict=True))
            for sample in of_episode
        ]
        algorithm = self._algorithm
        own_terms = self._custom_loss and not getattr(self._custom_loss, "skips_zero_advantages", False)
        if not (algorithm.loss_kl_coef or algorithm.entropy_coef or own_terms):
            by_loss = algorithm.distillation is not None and algorithm.distillation.kl_as == "loss"
            samples = [it for it in samples if any(it[0].advantages) or (by_loss and it[0].teacher_logprobs)]
        batches, _ = self._micro_batches([sample for sample, _ in samples], [owner for _, owner in samples])
        return _Update(batches, normaliser)

    def _one_update(self, update: _Update, measured: LossStatistics, *, first: bool) -> dict[str, float]:
        nothing = [None] * len(update.batches)
        olds, references = update.old or nothing, update.reference or nothing
        for batch, old_BT, reference_BT in zip(update.batches, olds, references, strict=True):
            # Only before the step's first update the trainer holds the weights that sampled.
            with self._computing(batch):
                loss = self._loss(batch, old_BT, reference_BT, update.normaliser, measured, compare=first)
                loss.backward()
        return self._update()

    def _loss(
        self,
        batch: MicroBatch,
        old_BT: torch.Tensor | None,
        reference_BT: torch.Tensor | None,
        normaliser: Normaliser,
        measured: LossStatistics,
        *,
        compare: bool,
    ) -> torch.Tensor:
        """A micro-batch's part of the loss; its statistics go to `measured`, with `compare` the mismatch too. An empty
        one costs the same passes, for the other ranks, and gives 0."""
        batch = batch.to(self.policy.device)
        scored = self._scored(self._score, batch, temperature=self._temperature, entropy=self._entropy)
        if not batch.samples:
            return scored.logprobs_BT.sum() * 0.0
        loss, statistics = policy_loss(
            scored.logprobs_BT,
            batch.advantages_BT,
            batch.loss_mask_BT,
            normaliser,
            self._algorithm,
            custom=self._custom_loss,
            old_logprobs_BT=old_BT,
            rollout_logprobs_BT=batch.rollout_logprobs_BT,
            reference_logprobs_BT=reference_BT,
            teacher_logprobs_BT=batch.teacher_logprobs_BT,
            entropy_BT=scored.entropy_BT,
            episode_tokens_B=batch.episode_tokens_B,
        )
        measured.add(statistics)
        if compare:
            trained_BT = trained_tokens(batch.loss_mask_BT, batch.advantages_BT)
            ages_BT = None if batch.versions_BT is None else self.step - batch.versions_BT
            measured.add(mismatch_statistics(scored.logprobs_BT, batch.rollout_logprobs_BT, trained_BT, ages_BT))
        return loss

    def _logprobs(self, score: TokenScorer, batch: MicroBatch) -> torch.Tensor:
        batch = batch.to(self.policy.device)
        with torch.no_grad(), self._computing(batch):
            return self._scored(score, batch, temperature=self._temperature).logprobs_BT


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.trained_tokens for sample in samples)


class SupervisedTrainer(BaseTrainer):
    """Fine-tuning on the assistant's tokens of demonstrations."""

    @within_memory()
    def update(self, demonstrations: Sequence[Demonstration]) -> dict[str, float]:
        """One step on a batch: the mean negative log-likelihood a token, and the metrics of the update. Raises
        DataError for a demonstration that is longer than the model's rotary embedding is set up for."""
        self._check_lengths(demonstrations)
        samples = [supervised_sample(item.ids, item.loss_mask, item.media) for item in demonstrations]
        batches, _ = self._micro_batches(samples, range(len(samples)))
        normaliser = Normaliser.of((sample.trained_tokens for sample in samples), "token_mean")
        total = 0.0
        for batch in batches:
            batch = batch.to(self.policy.device)
            with self._computing(batch):
                scored = self._scored(self._score, batch)
                loss = supervised_loss(scored.logprobs_BT, batch.loss_mask_BT, normaliser)
                loss = loss if batch.samples else loss * 0.0
                loss.backward()
            total += float(loss.detach())
        metrics = self._update()
        (total,) = self.ranks.sum([total], f"the loss of step {self.step + 1}")
        self._complete()
        return {"loss": total, "tokens/trained": float(normaliser.tokens), **metrics}

    def _check_lengths(self, demonstrations: Sequence[Demonstration]) -> None:
        longest, limit = max((len(item.ids) for item in demonstrations), default=0), self.policy.reach
        kinds = {"dynamic", "longrope"} & set(rope_types(self.policy.model.config.get_text_config()))
        if kinds and longest > limit:
            raise DataError(
                f"a demonstration of step {self.step + 1} has {longest} tokens; expected at most {limit}, for which "
                f"the model's rotary embedding ({', '.join(kinds)}) is set up",
                hint="Raise rollout.max_episode_tokens, up to the model's context, or leave out longer demonstrations.",
            )


def _loss_metrics(statistics: LossStatistics) -> dict[str, float]:
    """Of a step, under the names that reports know; empty where nothing was updated."""
    metrics = statistics.metrics()
    if "loss/total" in metrics:
        metrics["loss"] = metrics["loss/total"]
    if "clip/low" in metrics:  # A policy loss of a plugin clips as it likes.
        metrics["clip_fraction"] = metrics["clip/low"] + metrics["clip/high"]
    return metrics
