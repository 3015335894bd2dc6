"""GiGPO: Group-in-Group Policy Optimization (arXiv 2505.10978, section 4).

With R the reward of an episode, r_k what its turn k was given (the last turn: what the whole episode was given too):

    A_E = (R − mean(R)) / F                           over the episodes of the group            (3)
    R_t = Σ_{k ≥ t} γ^(k − t) · r_k                                                             (5)
    A_S = (R_t − mean(R_t)) / F                       over the group's turns in the same state  (7)
    A   = A_E + ω · A_S                               for all tokens of turn t                  (8)

F is the standard deviation + ε, or 1. A turn's anchor state (6) is what the model read before it: the tokens given
since its turn before in the same trajectory, or all of them. A state that was met once gives A_S = 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from toolrl.protocols import BuildContext, Credit
from toolrl.types import Episode, Group, RewardEntry, Trajectory
from toolrl_plugin_objectives.options import GiGPOOptions
from toolrl_plugin_torch.objective.advantage import group_advantages
from toolrl_plugin_torch.objective.credit import RoleRewards, by_role


class GiGPO:
    """Episodes are compared within their group, and their turns with those that began in the same state."""

    def __init__(self, options: GiGPOOptions, context: BuildContext) -> None:
        self._options = options

    def advantages(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """A number for each turn."""
        return by_role(groups, self._of_role)

    def _of_role(self, of: RoleRewards) -> list[Credit]:
        scale, whole = self._options.scale, self._options.anchor == "conversation"
        episode_B = group_advantages(of.totals_B, of.groups_B, of.valid_B, scale=scale)
        returns = [_returns(*it, self._options.discount) for it in zip(of.episodes, of.entries, strict=True)]
        steps = [
            (row, turn, (int(of.groups_B[row]), state))
            for row, episode in enumerate(of.episodes)
            for trajectory in episode.trajectories
            if of.valid_B[row] and trajectory.trained and trajectory.role == of.role
            for turn, state in _states(trajectory, whole=whole)
        ]
        numbers = {state: number for number, state in enumerate(dict.fromkeys(state for _, _, state in steps))}
        return_N = torch.tensor([returns[row][turn] for row, turn, _ in steps], dtype=torch.float64)
        states_N = torch.tensor([numbers[state] for _, _, state in steps], dtype=torch.int64)
        step_N = group_advantages(return_N, states_N, scale=scale)
        credited: list[dict[int, float | Sequence[float]]] = [{} for _ in of.episodes]
        for (row, turn, _), advantage in zip(steps, step_N.tolist(), strict=True):
            credited[row][turn] = float(episode_B[row]) + self._options.step_weight * advantage
        return list(credited)


def _returns(episode: Episode, entries: Sequence[RewardEntry], discount: float) -> dict[int, float]:
    """R_t by turn index, over the turns of all roles."""
    last = episode.turns[-1].index if episode.turns else 0
    given: dict[int, float] = defaultdict(float)
    for entry in entries:
        given[last if entry.turn is None else entry.turn] += entry.weight * entry.value
    returns, later = {}, 0.0
    for turn in reversed(episode.turns):
        returns[turn.index] = later = given[turn.index] + discount * later
    return returns


def _states(trajectory: Trajectory, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Each turn's index, and 64 bits of what the model had read when it began: tokens and images."""
    start = 0
    for turn in trajectory.turns:
        end = turn.segments[0].tokens[0]
        images = tuple(image.key for image in trajectory.media if start <= image.span[0] < end)
        yield turn.index, hash((trajectory.ids[start:end], images))
        # An answer inside of a turn is read before the next one.
        start = 0 if whole else max(it.tokens[1] for it in turn.segments if it.origin == "model")
