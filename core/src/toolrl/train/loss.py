"""The policy loss: clipped surrogate, KL to a reference, entropy bonus.

Every loss here is a weighted sum over tokens, and the weights hold the whole averaging:

    token_mean     1 / (trained tokens)                               DAPO, arXiv 2503.14476, section 3.3
    sequence_mean  1 / (sequences · trained tokens of its sequence)   GRPO, arXiv 2402.03300, equation 3
    constant       1 / (sequences · a constant length)                Dr. GRPO, arXiv 2503.20783, section 3.2

The numbers of tokens and sequences are those of the whole optimizer step (`Normaliser`), not of a micro-batch: the sum
of the micro-batches' losses, over all ranks, is the loss of one big batch, and so are its gradients, however the step
is cut.

A token's loss, with r = exp(logprob − old logprob) and d = reference logprob − logprob:

    −min(r · A, clip(r, 1 − clip_low, 1 + clip_high) · A)        PPO, arXiv 1707.06347, equation 7
    + kl_coef · r · (exp(d) − d − 1)                             the k3 estimate of KL(policy ‖ reference)
    − entropy_coef · entropy                                     of the next-token distribution

The factor r of the KL term is 1 on the first update of a step, but it has a gradient: with it the gradient of the term
is r · log(policy / reference) · ∇ log policy, that of KL(policy ‖ reference) without bias, also off-policy
(DeepSeek-V3.2, arXiv 2512.02556). GRPO as published has no such factor (`kl_correction=False`); TRL has it unless told
otherwise.

All tensors are aligned with the tokens (see `toolrl.train.batch`); what stands outside of the loss mask is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True, slots=True)
class Normaliser:
    """What the token losses of one optimizer step are averaged by."""

    aggregation: Aggregation
    tokens: int
    """Trained tokens of the optimizer step, over all micro-batches and ranks."""
    sequences: int
    """Sequences with a trained token, likewise."""
    length: int | None = None
    """For `constant`: the length that each sequence is divided by, usually the most tokens an episode may sample."""

    @classmethod
    def of(
        cls, loss_masks: Iterable[torch.Tensor], aggregation: Aggregation, *, length: int | None = None
    ) -> Normaliser:
        """Counted from the masks of all micro-batches of an optimizer step."""
        tokens = sequences = 0
        for mask_BT in loss_masks:
            tokens += int(mask_BT.sum())
            sequences += int(mask_BT.any(dim=1).sum())
        return cls(aggregation, tokens, sequences, length)

    def weights(self, loss_mask_BT: torch.Tensor) -> torch.Tensor:
        """The weight of each token's loss, float32 [B, T], 0 outside of the mask.

        Over the optimizer step the weights sum to 1, except with `constant`.
        """
        mask_BT = loss_mask_BT.float()
        if self.aggregation == "token_mean":
            return mask_BT / max(self.tokens, 1)
        if self.aggregation == "sequence_mean":
            return mask_BT / (mask_BT.sum(dim=1, keepdim=True).clamp(min=1.0) * max(self.sequences, 1))
        if self.aggregation == "constant":
            if not self.length or self.length < 1:
                raise ValueError(f"aggregation 'constant' needs the length to divide by, got {self.length!r}")
            return mask_BT / (self.length * max(self.sequences, 1))
        raise ValueError(f"aggregation is {self.aggregation!r}, expected 'token_mean', 'sequence_mean' or 'constant'")


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

    def metrics(self) -> dict[str, float]:
        """By name. Means over no tokens are left out."""
        totals = {name: value.tolist() for name, value in self.means.items()}
        metrics = {name: total / count for name, (total, count) in totals.items() if count}
        return metrics | {name: float(value) for name, value in (self.sums | self.maxima).items()}


def _mean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Total and count of the masked values, float64 [2]."""
    return torch.stack([torch.where(mask_BT, values_BT, 0).sum(dtype=torch.float64), mask_BT.sum().double()])


def clipped_surrogate(
    logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """PPO's clipped objective with its sign turned, one value a token [B, T]."""
    ratio_BT = torch.exp(logprobs_BT - old_logprobs_BT)
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def kl_k3(logprobs_BT: torch.Tensor, reference_logprobs_BT: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy ‖ reference) from samples of the policy, one value ≥ 0 a token [B, T]
    (http://joschu.net/blog/kl-approx.html)."""
    difference_BT = reference_logprobs_BT - logprobs_BT
    return torch.exp(difference_BT) - difference_BT - 1.0


def policy_loss(
    logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    loss_mask_BT: torch.Tensor,
    normaliser: Normaliser,
    *,
    old_logprobs_BT: torch.Tensor | None = None,
    reference_logprobs_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
    kl_correction: bool = True,
    entropy_coef: float = 0.0,
) -> tuple[torch.Tensor, LossStatistics]:
    """A micro-batch's part of the optimizer step's loss, and its statistics. Backward each part, then step once.

    `logprobs_BT` carries the gradient. `old_logprobs_BT` are those of the policy before the first update on these
    samples; None where this is the first update: then the ratio is exactly 1 and nothing is clipped.
    `reference_logprobs_BT` is needed with a `kl_coef`, `entropy_BT` (carrying a gradient) with an `entropy_coef`; where
    they are given without one, they are measured only. `kl_correction` weighs the KL term by the ratio.
    """
    if kl_coef and reference_logprobs_BT is None:
        raise ValueError(f"kl_coef is {kl_coef:g}, but there are no log-probabilities of the reference")
    if entropy_coef and entropy_BT is None:
        raise ValueError(f"entropy_coef is {entropy_coef:g}, but there is no entropy")
    mask_BT = loss_mask_BT.bool()
    weights_BT = normaliser.weights(mask_BT)
    # Outside of the mask all inputs become 0, so that no inf or NaN there can reach the loss or a gradient.
    logprobs_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    advantages_BT = torch.where(mask_BT, advantages_BT, 0.0)
    old_BT = logprobs_BT.detach() if old_logprobs_BT is None else torch.where(mask_BT, old_logprobs_BT, 0.0)
    statistics = _surrogate_statistics(logprobs_BT.detach(), old_BT, advantages_BT, mask_BT, clip_low, clip_high)

    surrogate_BT = clipped_surrogate(logprobs_BT, old_BT, advantages_BT, clip_low=clip_low, clip_high=clip_high)
    loss = policy = (weights_BT * surrogate_BT).sum()
    if reference_logprobs_BT is not None:
        kl_BT = kl_k3(logprobs_BT, torch.where(mask_BT, reference_logprobs_BT, 0.0))
        statistics.means["kl"] = _mean(kl_BT.detach(), mask_BT)
        if kl_coef:
            ratio_BT = torch.exp(logprobs_BT - old_BT) if kl_correction else 1.0
            loss = loss + kl_coef * (weights_BT * ratio_BT * kl_BT).sum()
    if entropy_BT is not None:
        entropy_BT = torch.where(mask_BT, entropy_BT, 0.0)
        statistics.means["entropy"] = _mean(entropy_BT.detach(), mask_BT)
        if entropy_coef:
            loss = loss - entropy_coef * (weights_BT * entropy_BT).sum()
    statistics.sums["loss/policy"] = policy.detach()
    statistics.sums["loss/total"] = loss.detach()
    return loss, statistics


def _surrogate_statistics(
    logprobs_BT: torch.Tensor,
    old_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> LossStatistics:
    log_ratio_BT = logprobs_BT - old_BT
    ratio_BT = torch.exp(log_ratio_BT)
    low_BT = (ratio_BT < 1.0 - clip_low) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1.0 + clip_high) & (advantages_BT > 0)
    return LossStatistics(
        means={
            "ratio/mean": _mean(ratio_BT, mask_BT),
            "clip/low": _mean(low_BT, mask_BT),
            "clip/high": _mean(high_BT, mask_BT),
            # k3 again, here of KL(old policy ‖ policy): how far the updates of this step went.
            "approx_kl": _mean(ratio_BT - 1.0 - log_ratio_BT, mask_BT),
        },
        maxima={"ratio/max": torch.where(mask_BT, ratio_BT, 0.0).max()},
    )


def mismatch_statistics(
    logprobs_BT: torch.Tensor, rollout_logprobs_BT: torch.Tensor, loss_mask_BT: torch.Tensor
) -> LossStatistics:
    """How far the trainer's log-probabilities are from the engine's on sampled tokens, as `logprob_mismatch/mean` and
    `/max`. Means something where the trainer holds the weights that sampled: before the first update of a step."""
    mask_BT = loss_mask_BT.bool()
    distance_BT = torch.where(mask_BT, (logprobs_BT.detach() - rollout_logprobs_BT).abs(), 0.0)
    return LossStatistics(
        means={"logprob_mismatch/mean": _mean(distance_BT, mask_BT)},
        maxima={"logprob_mismatch/max": distance_BT.max()},
    )


def supervised_loss(logprobs_BT: torch.Tensor, loss_mask_BT: torch.Tensor, normaliser: Normaliser) -> torch.Tensor:
    """A micro-batch's part of the negative log-likelihood of the trained tokens."""
    logprobs_BT = torch.where(loss_mask_BT.bool(), logprobs_BT, 0.0)
    return -(normaliser.weights(loss_mask_BT) * logprobs_BT).sum()
