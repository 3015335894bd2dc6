"""The policy loss: surrogate, KL to a reference, entropy bonus.

Every loss here is a weighted sum over tokens, and the weights hold the whole averaging:

    token_mean     1 / (trained tokens)                               DAPO, arXiv 2503.14476, section 3.3
    sequence_mean  1 / (sequences · trained tokens of its sequence)   GRPO, arXiv 2402.03300, equation 3
    sequence_sum   1 / sequences                                      REINFORCE and RLOO, arXiv 2402.14740
    constant       1 / (sequences · a constant length)                Dr. GRPO, arXiv 2503.20783, section 3.2

A sequence is an episode here, with all of its trajectories: how its turns are spread over them changes no weight.
The numbers of tokens and sequences are those of the whole optimizer step (`Normaliser`), not of a micro-batch: the sum
of the micro-batches' losses, over all ranks, is the loss of one big batch, and so are its gradients, however the step
is cut.

A token's loss, with r = exp(logprob − old logprob):

    importance · surrogate            what the advantage asks for, `surrogate`, weighted where another
                                      policy sampled, and 0 where that one was too far off,
                                      `importance`
    + kl_coef · w · kl                an estimate of KL(policy ‖ reference), `kl_estimate`
    + distillation.coef · w · kl      the same of KL(policy ‖ teacher), with `kl_as: loss`
    − entropy_coef · entropy          of the next-token distribution

with w = policy / the policy that sampled, at most exp(20): over samples the mean of w · kl is that of kl over the
policy's own tokens. The gradient of a token's KL(policy ‖ reference), given what stands before it, is the mean, over
the policy's own tokens, of log(policy / reference) · ∇ log policy. So the term's gradient is w · log(policy /
reference) · ∇ log policy with every estimator, which is without bias for samples of any policy. What stands before a
token is taken as it was sampled, and importance weights and rejection leave the term alone. The gradient is that of w
· k3 where w isn't detached (DeepSeek-V3.2, arXiv 2512.02556), and that of w · k1 but for a part that is zero on
average. TRL's weight is r instead: the same where the old log-probabilities are those as sampled. GRPO as published
has no weight (`kl_correction=False`), and the estimate's own gradient.

Metrics of ratio, clip, importance and mismatch are those of the trained tokens: the sampled tokens of sequences with an
advantage. What other sequences a micro-batch holds, for their KL and entropy terms, doesn't change them.

All tensors are aligned with the tokens (see `batch`); what stands outside of the loss mask is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from toolrl.protocols import LossTerms, PolicyLoss
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.importance import importance_weights, rejected_tokens
from toolrl_plugin_torch.objective.surrogate import (
    cispo_surrogate,
    clipped_surrogate,
    clipped_tokens,
    kl_estimate,
    log_ratio,
    own_gradients,
    ratio_of,
)


@dataclass(frozen=True, slots=True)
class Normaliser:
    """The normaliser of one optimizer step's token losses."""

    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
    tokens: int
    """Trained tokens of the optimizer step, over all micro-batches and ranks."""
    sequences: int
    """Episodes with a trained token, likewise."""
    length: int = 1
    """For `constant`: the length that each sequence is divided by, usually the most tokens an episode may sample."""

    @classmethod
    def of(cls, trained: Iterable[int], aggregation: Any, *, length: int = 1) -> Normaliser:
        """Counted from the trained tokens of each episode of an optimizer step, whichever rank computes it."""
        counts = [count for count in trained if count]
        return cls(aggregation, sum(counts), len(counts), length)

    def weights(self, loss_mask_BT: torch.Tensor, episode_tokens_B: torch.Tensor | None = None) -> torch.Tensor:
        """The weight of each token's loss, float32 [B, T], 0 outside of the mask. `episode_tokens_B`: trained tokens of
        each row's episode; None where the row has all of them.

        Over the optimizer step the weights sum to 1, except with `sequence_sum` and `constant`.
        """
        mask_BT = loss_mask_BT.float()
        if self.aggregation == "token_mean":
            return mask_BT / max(self.tokens, 1)
        if self.aggregation == "sequence_mean":
            tokens_B = mask_BT.sum(dim=1) if episode_tokens_B is None else episode_tokens_B
            return mask_BT / (tokens_B[:, None].clamp(min=1.0) * max(self.sequences, 1))
        if self.aggregation == "sequence_sum":
            return mask_BT / max(self.sequences, 1)
        return mask_BT / (self.length * max(self.sequences, 1))


@dataclass
class LossStatistics:
    """What micro-batches, and ranks, add up for the metrics before anything is divided. Holds tensors without gradient,
    so that nothing waits for the device until `metrics`."""

    means: dict[str, torch.Tensor] = field(default_factory=dict)
    """Total and count, [2]; both are added up, and the metric is their quotient."""
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, other: LossStatistics) -> None:
        """Take another micro-batch's into this."""
        for mine, others in ((self.means, other.means), (self.sums, other.sums)):
            for name, value in others.items():
                mine[name] = mine[name] + value if name in mine else value
        for name, value in other.maxima.items():
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value

    def cpu(self) -> LossStatistics:
        """The same on the CPU, to be sent to other ranks."""
        parts = (self.means, self.sums, self.maxima)
        return LossStatistics(*({name: value.cpu() for name, value in part.items()} for part in parts))

    @classmethod
    def total(cls, parts: Iterable[LossStatistics]) -> LossStatistics:
        """Those of all micro-batches or ranks."""
        total = cls()
        for part in parts:
            total.add(part)
        return total

    def metrics(self) -> dict[str, float]:
        """By name. Means and maxima over no tokens are left out."""
        totals = {name: value.tolist() for name, value in self.means.items()}
        metrics = {name: total / count for name, (total, count) in totals.items() if count}
        others = {name: float(value) for name, value in (self.sums | self.maxima).items()}
        return metrics | {name: value for name, value in others.items() if value != -math.inf}


def trained_tokens(loss_mask_BT: torch.Tensor, advantages_BT: torch.Tensor) -> torch.Tensor:
    """The sampled tokens of sequences that have an advantage, bool [B, T]."""
    mask_BT = loss_mask_BT.bool()
    return mask_BT & (mask_BT & (advantages_BT != 0)).any(dim=1, keepdim=True)


def _mean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Total and count of the masked values, float64 [2]."""
    return torch.stack([torch.where(mask_BT, values_BT, 0).sum(dtype=torch.float64), mask_BT.sum().double()])


def _greatest(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Of the masked values; −∞ where there are none."""
    return torch.where(mask_BT, values_BT, -math.inf).max()


def policy_loss(
    logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    loss_mask_BT: torch.Tensor,
    normaliser: Normaliser,
    algorithm: AlgorithmConfig,
    *,
    custom: PolicyLoss | None = None,
    old_logprobs_BT: torch.Tensor | None = None,
    rollout_logprobs_BT: torch.Tensor | None = None,
    reference_logprobs_BT: torch.Tensor | None = None,
    teacher_logprobs_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    episode_tokens_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, LossStatistics]:
    """A micro-batch's part of the optimizer step's loss, and its statistics. Backward each part, then step once.
    `custom` takes the place of the algorithm's surrogate, with its ratio and clip. Its method `clipped_tokens(terms)`,
    where it has one, gives the tokens that it holds below and above, bool [B, T] each: clip/low and clip/high.

    `logprobs_BT` carries the gradient. `old_logprobs_BT` are those of the policy before the first update on these
    samples; None where this is the first update: then the ratio is exactly 1 and nothing is clipped.
    `old_logprobs: sampled` takes the engine's instead. `rollout_logprobs_BT`, the engine's, are needed with that,
    `importance` and `rejection`; None takes the old ones for them. `reference_logprobs_BT` are needed with a `kl_coef`,
    and measured only without one; `entropy_BT`, carrying a gradient, with an `entropy_coef`; the teacher's are for a
    custom loss. `episode_tokens_B` is that
    of `Normaliser.weights`.
    """
    assert reference_logprobs_BT is not None or not algorithm.loss_kl_coef, "the KL term needs the reference"
    mask_BT = loss_mask_BT.bool()
    weights_BT = normaliser.weights(mask_BT, episode_tokens_B)
    # Outside of the mask all inputs become 0, so that no inf or NaN there can reach the loss or a gradient.
    logprobs_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    advantages_BT = torch.where(mask_BT, advantages_BT, 0.0)
    old_BT = logprobs_BT.detach() if old_logprobs_BT is None else torch.where(mask_BT, old_logprobs_BT, 0.0)
    rollout_BT = old_BT if rollout_logprobs_BT is None else torch.where(mask_BT, rollout_logprobs_BT, 0.0)
    if algorithm.old_logprobs == "sampled":
        old_BT = rollout_BT

    others = (reference_logprobs_BT, teacher_logprobs_BT, entropy_BT)
    reference_BT, teacher_BT, entropy_BT = (None if it is None else torch.where(mask_BT, it, 0.0) for it in others)
    terms = LossTerms(logprobs_BT, old_BT, rollout_BT, advantages_BT, mask_BT, reference_BT, teacher_BT, entropy_BT)
    trained_BT = trained_tokens(mask_BT, advantages_BT)
    token_loss_BT, statistics = _surrogate(terms, algorithm, custom, trained_BT)
    token_loss_BT = _off_policy(token_loss_BT, terms, algorithm, trained_BT, statistics)
    loss = policy = (weights_BT * token_loss_BT).sum()
    if reference_BT is not None:
        kl_BT, statistics.means["kl"] = _divergence(terms, reference_BT, algorithm)
        if algorithm.loss_kl_coef:
            loss = loss + algorithm.kl_coef * (weights_BT * kl_BT).sum()
    distillation = algorithm.distillation
    if teacher_BT is not None and distillation is not None and distillation.kl_as == "loss":
        kl_BT, _ = _divergence(terms, _within(teacher_BT, logprobs_BT.detach(), distillation.clip), algorithm)
        loss = loss + distillation.coef * (weights_BT * kl_BT).sum()
    if algorithm.entropy_coef and entropy_BT is not None:
        loss = loss - algorithm.entropy_coef * (weights_BT * entropy_BT).sum()
    statistics.sums["loss/policy"] = policy.detach()
    statistics.sums["loss/total"] = loss.detach()
    return loss, statistics


def _within(teacher_BT: torch.Tensor, logprobs_BT: torch.Tensor, clip: float | None) -> torch.Tensor:
    """The teacher's log-probabilities, at most `clip` from the policy's; the policy's own where none scored a token."""
    away_BT = (teacher_BT - logprobs_BT).nan_to_num(nan=0.0)
    return logprobs_BT + (away_BT if clip is None else away_BT.clamp(-clip, clip))


def _divergence(
    terms: LossTerms, others_BT: torch.Tensor, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each token the estimated KL divergence from another model with the gradient that the algorithm says, [B, T],
    and its total and count [2]."""
    logprobs_BT, mask_BT = terms.logprobs_BT, terms.mask_BT
    kl_BT = kl_estimate(logprobs_BT, others_BT, algorithm.kl_estimator)
    weights_BT = ratio_of(log_ratio(logprobs_BT.detach(), terms.rollout_logprobs_BT, mask_BT, "token"))
    mean = _mean(weights_BT * kl_BT.detach(), mask_BT)
    if algorithm.kl_correction:
        # k2's own gradient is log(policy / other) · ∇ log policy.
        k2_BT = kl_estimate(logprobs_BT, others_BT, "k2")
        kl_BT = weights_BT * (kl_BT.detach() + k2_BT - k2_BT.detach())
    return kl_BT, mean


def _surrogate(
    terms: LossTerms, algorithm: AlgorithmConfig, custom: PolicyLoss | None, trained_BT: torch.Tensor
) -> tuple[torch.Tensor, LossStatistics]:
    """The surrogate of each token, [B, T], and what it does to the ratios."""
    logprobs_BT, advantages_BT, mask_BT = terms.logprobs_BT, terms.advantages_BT, terms.mask_BT
    token_BT = log_ratio(logprobs_BT, terms.old_logprobs_BT, mask_BT, "token")
    distance_BT = token_BT.detach()
    ratio_BT = token_BT
    if custom is None and algorithm.ratio != "token":
        ratio_BT = log_ratio(logprobs_BT, terms.old_logprobs_BT, mask_BT, algorithm.ratio)
        ratio_BT = own_gradients(ratio_BT, logprobs_BT)
    now_BT = ratio_of(ratio_BT.detach())
    statistics = LossStatistics(
        means={
            "ratio/mean": _mean(now_BT, trained_BT),
            # k3 again, here of KL(old policy ‖ policy): how far the updates of this step went.
            "approx_kl": _mean(ratio_of(distance_BT) - 1.0 - distance_BT, trained_BT),
        },
        maxima={"ratio/max": _greatest(now_BT, trained_BT)},
    )
    if custom is not None:
        losses_BT = custom.token_losses(terms)
        if losses_BT.shape != mask_BT.shape:  # It would be broadcast.
            raise ValueError(f"the policy loss gave {tuple(losses_BT.shape)}, expected {tuple(mask_BT.shape)}")
        losses_BT = torch.where(mask_BT, losses_BT, 0.0)
        if hasattr(custom, "clipped_tokens"):
            low_BT, high_BT = custom.clipped_tokens(terms)
            statistics.means |= {"clip/low": _mean(low_BT, trained_BT), "clip/high": _mean(high_BT, trained_BT)}
        return losses_BT, statistics
    low_BT, high_BT = clipped_tokens(ratio_BT.detach(), advantages_BT, algorithm)
    statistics.means["clip/low"] = _mean(low_BT, trained_BT)
    statistics.means["clip/high"] = _mean(high_BT, trained_BT)
    if algorithm.surrogate == "cispo":
        return cispo_surrogate(ratio_BT, logprobs_BT, advantages_BT, algorithm), statistics
    return clipped_surrogate(ratio_BT, advantages_BT, algorithm), statistics


def _off_policy(
    token_loss_BT: torch.Tensor,
    terms: LossTerms,
    algorithm: AlgorithmConfig,
    trained_BT: torch.Tensor,
    statistics: LossStatistics,
) -> torch.Tensor:
    """The surrogate of each token, weighted, and 0 where it is rejected, because another policy sampled it."""
    old_BT, rollout_BT, mask_BT = terms.old_logprobs_BT, terms.rollout_logprobs_BT, terms.mask_BT
    if algorithm.importance is not None:
        importance_BT, capped_BT = importance_weights(old_BT, rollout_BT, mask_BT, algorithm.importance)
        token_loss_BT = importance_BT * token_loss_BT
        statistics.means["importance/mean"] = _mean(importance_BT, trained_BT)
        statistics.means["importance/capped"] = _mean(capped_BT, trained_BT)
    if algorithm.rejection is not None:
        rejected_BT = rejected_tokens(old_BT, rollout_BT, terms.advantages_BT, mask_BT, algorithm.rejection)
        token_loss_BT = torch.where(rejected_BT, 0.0, token_loss_BT)
        statistics.means["importance/rejected"] = _mean(rejected_BT, trained_BT)
    return token_loss_BT


def mismatch_statistics(
    logprobs_BT: torch.Tensor,
    rollout_logprobs_BT: torch.Tensor,
    trained_BT: torch.Tensor,
    ages_BT: torch.Tensor | None = None,
) -> LossStatistics:
    """How far the trainer's log-probabilities are from the engine's, as `logprob_mismatch/mean` and `/max` over the
    trained tokens that the trainer's weights sampled, and as `staleness/distance` over those that older ones did, which
    holds the policy's changes as well. To be called before the first update of a step. `ages_BT`: how many versions
    older than the trainer's the weights were that sampled a token; None for 0."""
    distance_BT = (logprobs_BT.detach() - rollout_logprobs_BT).abs()
    stale_BT = torch.zeros_like(trained_BT) if ages_BT is None else trained_BT & (ages_BT > 0)
    fresh_BT = trained_BT & ~stale_BT
    return LossStatistics(
        means={
            "logprob_mismatch/mean": _mean(distance_BT, fresh_BT),
            "staleness/distance": _mean(distance_BT, stale_BT),
        },
        maxima={"logprob_mismatch/max": _greatest(distance_BT, fresh_BT)},
    )


def supervised_loss(logprobs_BT: torch.Tensor, loss_mask_BT: torch.Tensor, normaliser: Normaliser) -> torch.Tensor:
    """A micro-batch's part of the negative log-likelihood of the trained tokens."""
    logprobs_BT = torch.where(loss_mask_BT.bool(), logprobs_BT, 0.0)
    return -(normaliser.weights(loss_mask_BT) * logprobs_BT).sum()
