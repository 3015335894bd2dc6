"""How far the policy is from a reference, estimated from the policy's own samples, one value a token.

With d = reference log-probability − log-probability (http://joschu.net/blog/kl-approx.html):

    k1   −d                   unbiased, may be negative
    k2   d² / 2               biased, low variance; its gradient is that of KL(policy ‖ reference) on-policy
    k3   exp(d) − d − 1       unbiased, never negative

k1's own gradient is zero on average, and k3's is that of KL(reference ‖ policy): how the loss gets the right one, also
from samples of another policy, see `toolrl_plugin_torch.objective.loss`.

d is held between −10⁴ and 20, so that values and gradients are finite: a token that the policy samples and the
reference holds exp(20) times likelier is as rare as that.
"""

from __future__ import annotations

import torch

from toolrl_plugin_torch.objective.surrogate import FAR, LARGEST, own_gradients


def kl_estimate(logprobs_BT: torch.Tensor, reference_logprobs_BT: torch.Tensor, estimator: str = "k3") -> torch.Tensor:
    """The estimate of KL(policy ‖ reference) at each token, in nats, shape [B, T]."""
    # −d, with its gradient also where it is held.
    distance_BT = own_gradients((logprobs_BT - reference_logprobs_BT).clamp(-LARGEST, FAR), logprobs_BT)
    if estimator == "k1":
        return distance_BT
    if estimator == "k2":
        return distance_BT.square() / 2
    return torch.expm1(-distance_BT) + distance_BT
