"""The trainers: what turns a step's groups, or a batch of demonstrations, into an update of the policy.

    groups → credit → samples → updates of the step → micro-batches → log-probabilities → loss → optimizer step

Everything numeric is in pure functions (`advantage`, `batch`, `logprob`, `loss`); here they are put in order. A trainer
holds model, optimizer and step counter, which always belong together: the counter advances as an update's last act, and
checkpoints are taken between updates only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.loop.demonstrations import Demonstration
from toolrl.loop.ranks import ONE, Ranks
from toolrl.protocols import AdvantageEstimator, PolicyLoss
from toolrl.types import Group
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.batch import MicroBatch, Sample, episode_sample, supervised_sample
from toolrl_plugin_torch.checkpoints import trainer_checkpoint
from toolrl_plugin_torch.critic import Critic
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.objective.credit import credit, sampled_entropy
from toolrl_plugin_torch.objective.loss import (
    LossStatistics,
    Normaliser,
    Objective,
    mismatch_statistics,
    policy_loss,
    supervised_loss,
    trained_tokens,
)
from toolrl_plugin_torch.offload import own_tensors, waiting, warn_where_useless
from toolrl_plugin_torch.optimizer import PolicyOptimizer, learning_rate
from toolrl_plugin_torch.options import SftConfig, TrainerConfig
from toolrl_plugin_torch.policy import Policy, PolicyWeights
from toolrl_plugin_torch.prefixes.sharing import choose
from toolrl_plugin_torch.prefixes.tree_attention import over_trees
from toolrl_plugin_torch.sharding.balancing import deal
from toolrl_plugin_torch.sharding.single_process import parallelism

P = ParamSpec("P")
T = TypeVar("T")

_POLICY, _CRITIC = "policy", "critic"
"""Their names in a checkpoint."""


def within_memory(update: Callable[P, T]) -> Callable[P, T]:
    """Raises RunStoppedError, with what to change, where the device's memory runs out."""

    @wraps(update)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return update(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise RunStoppedError(
                f"the device's memory ran out: {str(error).partition('. GPU')[0]}",
                hint="Lower tokens_per_microbatch (of trainer or sft), set model.gradient_checkpointing to true, or "
                "give the engine fewer cache_tokens; then go on from the last checkpoint with --resume.",
            ) from error

    return guarded


class _Trainer:
    """A policy with its optimizer and step counter: what both objectives share."""

    def __init__(
        self,
        policy: Policy,
        settings: TrainerConfig | SftConfig,
        directory: Path,
        *,
        with_reference: bool = False,
        ranks: Ranks = ONE,
        cpu_offload: bool = False,
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        self._parallel = parallelism(ranks, cpu_offload=cpu_offload)
        offload = settings.offload if isinstance(settings, TrainerConfig) else []
        warn_where_useless(offload, policy.device)
        self.step = 0
        """Complete steps; also the version of the weights."""
        self.skipped_steps = 0
        """Steps at the start of the run in which the policy waits; its learning rate's schedule begins after them."""
        self.whole = True
        """False while the weights are those of a step half done, after one of several updates: no checkpoint then."""
        self._weights = PolicyWeights(policy, 0, directory)
        self._settings = settings
        self._directory = directory
        policy.model.train()
        whole = TokenScorer(policy.model)
        where = "sft.share_prefix" if isinstance(settings, SftConfig) else "trainer.share_prefix"
        self.shares = ranks.broadcast(choose(settings.share_prefix, [whole], where, policy.tokenizer), where)
        """Whether what sequences have in common at the start is computed once."""
        self._score = self._parallel.trained_scorer(whole)
        self._score_reference = self._parallel.reference_scorer(whole, policy) if with_reference else None
        self._scorers = [score for score in (self._score, self._score_reference) if score is not None]
        self.optimizer = PolicyOptimizer(self._score.model.named_parameters(), settings, offload="optimizer" in offload)

    @property
    def reference(self) -> Any:
        """The policy as it was at the start of the run, where the objective has a KL term; else None."""
        return None if self._score_reference is None else self._score_reference.model

    def weights(self) -> PolicyWeights:
        """The live weights, with their version. What a source of an earlier version wrote is deleted."""
        if self._weights.version != self.step:
            self._weights.close()
            self._weights = PolicyWeights(self.policy, self.step, self._directory)
        return self._weights

    def optimizers(self) -> dict[str, PolicyOptimizer]:
        """All, by name; each has the weights that it trains."""
        return {_POLICY: self.optimizer}

    def weights_were_loaded(self) -> None:
        """The policy's model has others now."""
        self._parallel.read_from(self._score, self.policy.model)

    def gather_state(self, directory: Path) -> Path | None:
        """What ranks write together: a folder of shards; None in one process."""
        return trainer_checkpoint.gather_state(self, directory)

    def save(self, folder: Path, gathered: Path | None) -> None:
        """Write model, tokenizer and state into a checkpoint's folder."""
        trainer_checkpoint.save(self, folder, gathered)

    def saved_bytes(self) -> int:
        """About how many bytes `save` writes."""
        return trainer_checkpoint.saved_bytes(self)

    def load(self, folder: Path, step: int) -> None:
        """Take up what `save` wrote at this step. Raises CheckpointError."""
        trainer_checkpoint.load(self, folder, step)

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the policy and its optimizer, by name."""
        return {}

    def _extras(self) -> set[str]:
        """The names in `extra_state`."""
        return set()

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take up what `extra_state` gave. Raises CheckpointError where it isn't what this trainer has."""
        if set(state) != self._extras():
            raise CheckpointError(
                f"the checkpoint holds {', '.join(sorted(state)) or 'no critic'}, and the config asks for "
                f"{', '.join(sorted(self._extras())) or 'no critic'}",
                hint="Resume with the algorithm that the run began with, or start a new run from these weights.",
            )

    def _pad_id(self) -> int:
        pad = self.policy.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)

    def _micro_batches(self, samples: Sequence[Sample], groups: Sequence[Hashable]) -> list[MicroBatch]:
        """This rank's share of the samples of all ranks. `groups` names the group of each."""
        budget, what = self._settings.tokens_per_microbatch, f"micro-batches of step {self.step + 1}"
        batches, _ = self._parallel.micro_batches(
            samples, groups, budget, pad_id=self._pad_id(), share=self.shares, what=what
        )
        return batches

    def _computing(self, batch: MicroBatch) -> AbstractContextManager[None]:
        """To be around all passes over a micro-batch, forward and backward."""
        return nullcontext() if batch.tree is None else over_trees([score.model for score in self._scorers])

    def _update(self) -> dict[str, float]:
        skipped = self.skipped_steps
        rate = learning_rate(self.step - skipped, self._settings, self._settings.steps - skipped)
        return {"grad_norm": self.optimizer.step(rate), "learning_rate": rate}

    def _complete(self) -> None:
        """The step's updates are done."""
        self._parallel.write_back(self._score, self.policy.model)
        self.step, self.whole = self.step + 1, True


@dataclass
class _Update:
    """One optimizer step: its micro-batches and what their losses are averaged by."""

    batches: list[MicroBatch]
    normaliser: Normaliser
    old: list[torch.Tensor] | None = None
    """By micro-batch: log-probabilities before the step's first update; None where this is the first."""
    reference: list[torch.Tensor] | None = None
    """By micro-batch: log-probabilities under the reference; None where there is none."""


class PolicyTrainer(_Trainer):
    """Policy-gradient updates from groups of episodes.

    `temperature` is the one that episodes are sampled at; `longest` the most tokens an episode can sample, which the
    `constant` aggregation divides by. `estimator` and `custom_loss` stand for what the algorithm builds in.
    """

    def __init__(
        self,
        policy: Policy,
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
        needs_reference = bool(algorithm.kl_coef)
        super().__init__(
            policy, settings, directory, with_reference=needs_reference, ranks=ranks, cpu_offload=cpu_offload
        )
        self._reference_here = waiting(
            self.reference is not None and "reference" in settings.offload,
            lambda: own_tensors(self.reference, policy.model),
            policy.device,
            constant=True,
        )
        self._trainer = settings
        self._algorithm = algorithm
        self._estimator = estimator and self._parallel.estimator(estimator)
        self._objective = Objective.of(algorithm, custom_loss)
        self._temperature = temperature
        self._longest = longest
        self.critic: Critic | None = None
        if algorithm.baseline == "critic" and estimator is None:
            self.critic = Critic(policy.model, settings, algorithm, pad_id=self._pad_id(), parallel=self._parallel)
            assert algorithm.critic is not None, "the config fills it in"
            self.skipped_steps = algorithm.critic.warmup_steps

    @within_memory
    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step: all updates from its groups, and their metrics. A step without any gradient changes nothing."""
        self.ranks.use_device()
        credited = credit(groups, self._algorithm, self.critic or self._estimator)
        samples = [
            episode_sample(episode, advantage)
            for episode, advantage in zip(credited.episodes, credited.advantages, strict=True)
        ]
        groups_of = [episode.group for episode in credited.episodes]
        costs = [episode.sampled_tokens for episode in credited.episodes]
        even = self._algorithm.loss != "token_mean"
        parts = deal(groups_of, costs, self._trainer.updates_per_step, together=self.shares, even=even)
        plans = [self._plan([samples[index] for index in part], [groups_of[index] for index in part]) for part in parts]
        updates = [plan for plan in plans if plan.batches]
        if self.step < self.skipped_steps:
            updates = []
        if len(updates) > 1 and self._objective.proximal == "recomputed":
            # Later updates of the step start from another policy than the one that sampled.
            for update in updates:
                update.old = [self._logprobs(self._score, batch) for batch in update.batches]
        for update, logprobs in zip(updates, self._references([each.batches for each in updates]), strict=True):
            update.reference = logprobs
        measured, metrics = LossStatistics(), dict[str, float]()
        for number, update in enumerate(updates):
            metrics = self._one_update(update, measured, first=number == 0)
            self.whole = False
        if self.critic is not None:
            self.whole = False
            metrics |= self.critic.update()
        of_ranks = self.ranks.gather(measured.cpu(), f"statistics of step {self.step + 1}")
        self._complete()
        metrics |= {**sampled_entropy(groups), **credited.metrics, "updates": float(len(updates))}
        return {**_loss_metrics(LossStatistics.total(of_ranks)), **metrics}

    def optimizers(self) -> dict[str, PolicyOptimizer]:
        return super().optimizers() | ({_CRITIC: self.critic.optimizer} if self.critic is not None else {})

    def extra_state(self) -> dict[str, Any]:
        return {_CRITIC: self.critic.state_dict()} if self.critic is not None else {}

    def _extras(self) -> set[str]:
        return {_CRITIC} if self.critic is not None else set()

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        super().load_extra_state(state)
        if self.critic is not None:
            self.critic.load_state_dict(state[_CRITIC])

    def _plan(self, samples: Sequence[Sample], groups: Sequence[str]) -> _Update:
        """Micro-batches of the samples that move the policy, normalised over all samples of all ranks.

        Without KL and entropy terms an advantage of zero gives no gradient, so such a sample needs no forward pass,
        unless a plugin's loss makes something of it. An update of none is left out whole: momentum and weight decay
        would move the policy even so.
        """
        tokens = [sample.trained_tokens for sample in samples]
        normaliser = Normaliser.of(tokens, self._algorithm.loss, length=self._longest)
        if not (self._algorithm.kl_coef or self._algorithm.entropy_coef or self._objective.custom):
            moving = [number for number, sample in enumerate(samples) if any(sample.advantages)]
            samples, groups = [samples[number] for number in moving], [groups[number] for number in moving]
        return _Update(self._micro_batches(samples, groups), normaliser)

    def _one_update(self, update: _Update, measured: LossStatistics, *, first: bool) -> dict[str, float]:
        nothing = [None] * len(update.batches)
        olds, references = update.old or nothing, update.reference or nothing
        for batch, old_BT, reference_BT in zip(update.batches, olds, references, strict=True):
            # Only before the step's first update the trainer holds the weights that sampled.
            with self._computing(batch):
                loss = self._loss(batch, old_BT, reference_BT, update.normaliser, measured, compare=first)
                loss.backward()
        return self._update()

    def _references(self, updates: Sequence[Sequence[MicroBatch]]) -> list[list[torch.Tensor] | None]:
        """Log-probabilities under the reference of all micro-batches of each update, before any of them is made: the
        reference is needed once a step then. None for each where there is no reference."""
        score = self._score_reference
        if score is None:
            return [None] * len(updates)
        with self._reference_here:
            return [[self._logprobs(score, batch) for batch in batches] for batches in updates]

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
        scored = self._score(
            batch.input_ids_BT,
            batch.attention_mask_BT,
            batch.loss_mask_BT,
            temperature=self._temperature,
            entropy=bool(self._objective.entropy_coef),
            media=batch.media,
            tree=batch.tree,
        )
        if not batch.samples:
            return scored.logprobs_BT.sum() * 0.0
        loss, statistics = policy_loss(
            scored.logprobs_BT,
            batch.advantages_BT,
            batch.loss_mask_BT,
            normaliser,
            self._objective,
            old_logprobs_BT=old_BT,
            rollout_logprobs_BT=batch.rollout_logprobs_BT,
            reference_logprobs_BT=reference_BT,
            entropy_BT=scored.entropy_BT,
        )
        measured.add(statistics)
        if compare:
            trained_BT = trained_tokens(batch.loss_mask_BT, batch.advantages_BT)
            measured.add(mismatch_statistics(scored.logprobs_BT, batch.rollout_logprobs_BT, trained_BT))
        return loss

    def _logprobs(self, score: TokenScorer, batch: MicroBatch) -> torch.Tensor:
        batch = batch.to(self.policy.device)
        with torch.no_grad(), self._computing(batch):
            scored = score(
                batch.input_ids_BT,
                batch.attention_mask_BT,
                batch.loss_mask_BT,
                temperature=self._temperature,
                media=batch.media,
                tree=batch.tree,
            )
        return scored.logprobs_BT


class SupervisedTrainer(_Trainer):
    """Fine-tuning on the assistant's tokens of demonstrations."""

    @within_memory
    def update(self, demonstrations: Sequence[Demonstration]) -> dict[str, float]:
        """One step on a batch: the mean negative log-likelihood a token, and the metrics of the update."""
        samples = [supervised_sample(item.ids, item.loss_mask, item.media) for item in demonstrations]
        batches = self._micro_batches(samples, range(len(samples)))
        normaliser = Normaliser.of((sample.trained_tokens for sample in samples), "token_mean")
        total = 0.0
        for batch in batches:
            batch = batch.to(self.policy.device)
            with self._computing(batch):
                scored = self._score(
                    batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT, media=batch.media, tree=batch.tree
                )
                loss = supervised_loss(scored.logprobs_BT, batch.loss_mask_BT, normaliser)
                loss = loss if batch.samples else loss * 0.0
                loss.backward()
            total += float(loss.detach())
        metrics = self._update()
        (total,) = self.ranks.sum([total], f"the loss of step {self.step + 1}")
        self._complete()
        return {"loss": total, "tokens/trained": float(normaliser.tokens), **metrics}


def _loss_metrics(statistics: LossStatistics) -> dict[str, float]:
    """Of a step, under the names that reports know; empty where nothing was updated."""
    metrics = statistics.metrics()
    if "loss/total" in metrics:
        metrics["loss"] = metrics["loss/total"]
    if "clip/low" in metrics:  # A policy loss of a plugin clips as it likes.
        metrics["clip_fraction"] = metrics["clip/low"] + metrics["clip/high"]
    return metrics
