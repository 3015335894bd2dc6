"""Weights for samples that another policy drew than the one that the update starts from, and what is left out of them.

Engine and trainer compute log-probabilities by different kernels, and an episode may have been sampled some versions
ago. With b the log-probability as sampled (behaviour) and p that of the policy before the step's first update
(proximal), a token's loss is multiplied by w = exp(p − b), and the ratio that is clipped stays the one to the proximal
policy (decoupled PPO, arXiv 2110.00641; AReaL, arXiv 2505.24298, section 5.2). w is taken over the token, over all
trained tokens of the trajectory (`sequence`: their product), or as their geometric mean (`mean`). `truncate` takes
min(w, cap) (Yao et al., https://fengyao.notion.site/off-policy-rl); `reject` drops what lies above the cap.

A rejection leaves out what lies outside of [low, high] of w, by a level of its own, also of samples without weights.
Of tokens, together with weights of tokens, it is IcePop (Ring-1T, arXiv 2510.18855); whole trajectories are left out by
the product or the geometric mean (Liu et al., https://richardli.xyz/rl-collapse). With `only_negative` and `mean` it is
the off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556): low = exp(−δ), and a `high` that nothing exceeds.
"""

from __future__ import annotations

import torch

from toolrl_plugin_torch.algorithm import ImportanceConfig, RejectionConfig
from toolrl_plugin_torch.objective.surrogate import log_ratio, ratio_of


def importance_weights(
    old_BT: torch.Tensor, behaviour_BT: torch.Tensor, mask_BT: torch.Tensor, how: ImportanceConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight of each token and where the cap acts (bool), [B, T]; weights are 0 outside of the mask."""
    weights_BT = _ratios(old_BT, behaviour_BT, mask_BT, how.level)
    above_BT = (weights_BT > how.cap) & mask_BT
    kept_BT = torch.where(above_BT, 0.0, weights_BT) if how.mode == "reject" else weights_BT.clamp(max=how.cap)
    return torch.where(mask_BT, kept_BT, 0.0), above_BT


def rejected_tokens(
    old_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    how: RejectionConfig,
) -> torch.Tensor:
    """The tokens that are left out, bool [B, T], False outside of the mask."""
    ratios_BT = _ratios(old_BT, behaviour_BT, mask_BT, how.level)
    outside_BT = ((ratios_BT < how.low) | (ratios_BT > how.high)) & mask_BT
    return outside_BT & (advantages_BT < 0) if how.only_negative else outside_BT


def _ratios(old_BT: torch.Tensor, behaviour_BT: torch.Tensor, mask_BT: torch.Tensor, level: str) -> torch.Tensor:
    """Of the probabilities, [B, T]; of sequences: the same in all of a row."""
    logs_BT = log_ratio(old_BT.detach(), behaviour_BT, mask_BT, level)
    if level == "sequence":  # What `log_ratio` gives for a sequence is the mean.
        logs_BT = logs_BT * mask_BT.sum(dim=1, keepdim=True)
    return ratio_of(logs_BT)
