"""The policy's part of the loss, token by token: what an advantage does to a token's probability.

With the importance ratio r between the policy now and the policy before the step's first update, A the advantage:

    clip     −min(r · A, clip(r, 1 − low, 1 + high) · A)             PPO, arXiv 1707.06347, equation 7
             with `clip_dual` c, where A < 0, at most −c · A         arXiv 1912.09729, section 4
    cispo    −sg(clip(r, 1 − low, 1 + high)) · A · log π             MiniMax-M1, arXiv 2506.13585, section 3.1

`clip` gives no gradient to a token whose ratio left the range; `cispo` bounds the weight and keeps the gradient. The
ratio is of each token, or of the whole sequence, the same for all its tokens:

    token      π(token) / π_old(token)
    sequence   (π(sequence) / π_old(sequence)) ^ (1 / trained tokens)   GSPO, arXiv 2507.18071, equation 7

A sequence is a trajectory here: all of its trained tokens, over all turns. So the ratio of sequences, unlike that of
tokens, depends on how an episode's turns are spread over trajectories. Where tokens of a sequence differ in advantage
or weight, the sequence's ratio is that of GSPO-token (section 4.3 there): its value is the same, and each token's term
has a gradient by that token's own log-probability. By the sequence's, all tokens would get the mean of their
advantages, and the credit of turns would be lost; where all advantages are equal, both gradients are the same.

All tensors are [B, T].
"""

from __future__ import annotations

import torch

from toolrl_plugin_torch.algorithm import AlgorithmConfig

LARGEST = 20.0
"""Of a log-ratio, as in verl: a ratio that overflows would make a token that the clip holds a gradient of 0 · ∞."""
FAR = 1e4
"""Of a log-probability and of a distance between two, before anything is summed or squared: float32 holds the results,
and exp(−FAR) is 0."""


def log_ratio(
    logprobs_BT: torch.Tensor, old_logprobs_BT: torch.Tensor, mask_BT: torch.Tensor, ratio: str
) -> torch.Tensor:
    """Natural logarithm of the importance ratio of each token, [B, T]; of the sequence: the same in all of a row."""
    difference_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0).clamp(-FAR, FAR)
    if ratio == "token":
        return difference_BT
    count_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return (difference_BT.sum(dim=1, keepdim=True) / count_B1).expand_as(difference_BT)


def own_gradients(values_BT: torch.Tensor, logprobs_BT: torch.Tensor) -> torch.Tensor:
    """The same values, each with the gradient 1 by its token's own log-probability alone."""
    return values_BT.detach() + (logprobs_BT - logprobs_BT.detach())


def ratio_of(log_ratio_BT: torch.Tensor) -> torch.Tensor:
    """The ratio, held at exp(20), from where on it has no gradient."""
    return torch.exp(log_ratio_BT.clamp(max=LARGEST))


def clipped_surrogate(
    log_ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, algorithm: AlgorithmConfig
) -> torch.Tensor:
    """PPO's clipped objective with its sign turned."""
    ratio_BT = ratio_of(log_ratio_BT)
    clipped_BT = ratio_BT.clamp(1.0 - algorithm.clip_low, 1.0 + algorithm.clip_high)
    loss_BT = -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    if algorithm.clip_dual is None:
        return loss_BT
    bounded_BT = torch.minimum(loss_BT, -algorithm.clip_dual * advantages_BT)
    return torch.where(advantages_BT < 0, bounded_BT, loss_BT)


def cispo_surrogate(
    log_ratio_BT: torch.Tensor, logprobs_BT: torch.Tensor, advantages_BT: torch.Tensor, algorithm: AlgorithmConfig
) -> torch.Tensor:
    """REINFORCE weighted by a clipped ratio without gradient, with its sign turned."""
    weight_BT = ratio_of(log_ratio_BT.detach()).clamp(1.0 - algorithm.clip_low, 1.0 + algorithm.clip_high)
    return -weight_BT * advantages_BT * own_gradients(logprobs_BT.clamp(min=-FAR), logprobs_BT)


def clipped_tokens(
    log_ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the clip acts, below and above, bool: for `clip` only on the side that the advantage pushes to."""
    ratio_BT = ratio_of(log_ratio_BT)
    low_BT, high_BT = ratio_BT < 1.0 - algorithm.clip_low, ratio_BT > 1.0 + algorithm.clip_high
    if algorithm.surrogate == "cispo":
        return low_BT, high_BT
    return low_BT & (advantages_BT < 0), high_BT & (advantages_BT > 0)


def kl_estimate(logprobs_BT: torch.Tensor, reference_logprobs_BT: torch.Tensor, estimator: str = "k3") -> torch.Tensor:
    """The estimate of KL(policy ‖ reference) at each token, from the policy's own samples, in nats, shape [B, T]. With
    d = reference log-probability − log-probability (http://joschu.net/blog/kl-approx.html):

        k1   −d                   unbiased, may be negative
        k2   d² / 2               biased, low variance; its gradient is that of KL(policy ‖ reference) on-policy
        k3   exp(d) − d − 1       unbiased, never negative

    k1's own gradient is zero on average, and k3's is that of KL(reference ‖ policy); `objective.loss` has the right
    one. d is held between −10⁴ and 20, so that values and gradients are finite.
    """
    # −d, with its gradient also where it is held.
    distance_BT = own_gradients((logprobs_BT - reference_logprobs_BT).clamp(-LARGEST, FAR), logprobs_BT)
    if estimator == "k1":
        return distance_BT
    if estimator == "k2":
        return distance_BT.square() / 2
    return torch.expm1(-distance_BT) + distance_BT
