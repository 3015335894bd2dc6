"""GDPO: Group reward-Decoupled Normalization Policy Optimization (arXiv 2601.05242, section 3.1).

With r_k the k-th reward of an episode and w_k its weight in the config, over the G episodes of its group:

    A_k = (r_k − mean_G(r_k)) / (std_G(r_k) + ε)
    S   = Σ_k w_k · A_k
    A   = (S − mean(S)) / (std(S) + ε)                over all episodes of the step

GRPO sums first, and then (0, 1) and (1, 0) are the same. A reward is all that one source gives an episode: a reward
function, a tool, the cost of calls. Its scale is lost in A_k, so only its weight counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toolrl.protocols import BuildContext, Credit
from toolrl.types import Group
from toolrl_plugin_torch.objective.advantage import group_advantages
from toolrl_plugin_torch.objective.credit import RoleRewards, by_role


class GDPO:
    """Rewards are normalised one by one, then summed, then normalised over the step."""

    def __init__(self, options: None, context: BuildContext) -> None:
        pass

    def advantages(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """A number for each episode."""
        return by_role(groups, self._of_role)

    def _of_role(self, of: RoleRewards) -> list[float]:
        total_B = torch.zeros(len(of.episodes), dtype=torch.float64)
        for reward in sorted({(entry.source, entry.weight) for given in of.entries for entry in given}):
            values = [sum(it.value for it in given if (it.source, it.weight) == reward) for given in of.entries]
            reward_B = torch.tensor(values, dtype=torch.float64)
            total_B += reward[1] * group_advantages(reward_B, of.groups_B, of.valid_B)
        advantages: list[float] = group_advantages(
            total_B, of.groups_B, of.valid_B, baseline="batch_mean", scale="batch_std"
        ).tolist()
        return advantages
