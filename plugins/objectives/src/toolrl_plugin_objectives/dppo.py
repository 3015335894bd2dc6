"""DPPO: Divergence Proximal Policy Optimization (arXiv 2602.04879, equation 12), with binary divergences.

With p a token's probability now, q its probability as sampled, A its advantage:

    L = −M · min(p / q, cap) · A                      the gradient of p / q is kept above the cap
    M = 0 where A > 0, p > q and D > high, or A < 0, p < q and D > low; else 1
    D = |p − q|                                                         tv
    D = q · log(q / p) + (1 − q) · log((1 − q) / (1 − p))               kl

PPO bounds p / q instead, which holds rare tokens at once and likely ones hardly. q is that of the policy that sampled,
not recomputed: so M acts on the engine's differences and stale samples too, also with one update a step.
"""

from __future__ import annotations

import math

import torch

from toolrl.protocols import BuildContext, LossTerms
from toolrl_plugin_objectives.options import DPPOOptions
from toolrl_plugin_torch.objective.surrogate import log_ratio, own_gradients

_TINY = 1e-8
"""Added to probabilities that are 1 less another, as in the authors' code."""


class DPPO:
    """Policy gradients, without the tokens whose probability left the trust region."""

    skips_zero_advantages = True
    """A sample without an advantage has no loss, so it needs no forward pass."""

    def __init__(self, options: DPPOOptions, context: BuildContext) -> None:
        default = {"tv": 0.15, "kl": 0.05}[options.divergence]
        self._low = default if options.clip_low is None else options.clip_low
        self._high = default if options.clip_high is None else options.clip_high
        self._options = options

    def token_losses(self, terms: LossTerms) -> torch.Tensor:
        """The loss of each token, [B, T]."""
        low_BT, high_BT = self.clipped_tokens(terms)
        log_ratio_BT = log_ratio(terms.logprobs_BT.detach(), terms.rollout_logprobs_BT, terms.mask_BT, "token")
        ratio_BT = log_ratio_BT.clamp(max=math.log(self._options.ratio_cap)).exp()
        one_BT = own_gradients(torch.ones_like(ratio_BT), terms.logprobs_BT)
        return torch.where(low_BT | high_BT, 0.0, -ratio_BT * terms.advantages_BT * one_BT)

    def clipped_tokens(self, terms: LossTerms) -> tuple[torch.Tensor, torch.Tensor]:
        """Where M is 0, as the probability fell and as it rose, bool [B, T]."""
        p_BT, q_BT = terms.logprobs_BT.detach().double().exp(), terms.rollout_logprobs_BT.double().exp()
        distance_BT = (p_BT - q_BT).abs()
        if self._options.divergence == "kl":
            others_BT = (1.0 - q_BT) * ((1.0 - q_BT + _TINY) / (1.0 - p_BT + _TINY)).log()
            distance_BT = q_BT * (terms.rollout_logprobs_BT - terms.logprobs_BT.detach()) + others_BT
        low_BT = (terms.advantages_BT < 0) & (p_BT < q_BT) & (distance_BT > self._low)
        high_BT = (terms.advantages_BT > 0) & (p_BT > q_BT) & (distance_BT > self._high)
        return low_BT, high_BT
