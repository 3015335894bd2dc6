"""MaxRL: Maximum Likelihood Reinforcement Learning (arXiv 2602.02710, algorithm 1).

With r the rewards of a group, 0 or 1:

    A = (r − mean(r)) / mean(r)                       0 where no episode succeeded

GRPO divides by the standard deviation instead. With the success rate p of a task, log p = −Σ_k (1 − p)^k / k over all
k ≥ 1; of a group of G the expected gradient is that of the terms k < G. So a task counts by about 1 / p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toolrl.errors import RewardError
from toolrl.protocols import BuildContext, Credit
from toolrl.types import Group
from toolrl_plugin_torch.objective.advantage import group_advantages, group_statistics
from toolrl_plugin_torch.objective.credit import RoleRewards, by_role


class MaxRL:
    """Rewards against the mean of their group, over that mean."""

    def __init__(self, options: None, context: BuildContext) -> None:
        pass

    def advantages(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """A number for each episode. Raises RewardError for a reward below 0, of which the mean is no success rate."""
        return by_role(groups, self._of_role)

    def _of_role(self, of: RoleRewards) -> list[float]:
        negative = (of.valid_B & (of.totals_B < 0)).nonzero()
        if len(negative):
            row = int(negative[0])
            raise RewardError(
                f"maxrl: the reward of {of.episodes[row].id} is {float(of.totals_B[row]):g}; rewards must be 0 or more",
                hint="Take out call_cost and penalties, or take another algorithm.advantage.",
            )
        mean_G, _, _ = group_statistics(of.totals_B, of.groups_B, of.valid_B)
        mean_B = mean_G[of.groups_B]
        centred_B = group_advantages(of.totals_B, of.groups_B, of.valid_B, scale="none")
        advantages: list[float] = torch.where(mean_B > 0, centred_B / mean_B, 0.0).tolist()
        return advantages
