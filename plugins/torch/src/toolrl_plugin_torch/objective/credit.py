"""Credit: which tokens of a step's episodes get which advantage.

With `credit: episode` an episode's whole reward (steps, tools and reward functions) is compared within its group, and
all of its sampled tokens share the advantage. With `credit: turn` the parts are kept apart, as GRPO does for process
rewards (arXiv 2402.03300, section 4.1.3): what was given for the whole episode is compared as before; what was given
for single turns is compared with all such rewards of the group; and the tokens of turn k get the first, and of the
second the sum over turns j ≥ k, discounted by discount^(j − k).

Where several roles speak, an episode is a unit for each of its roles: what is credited to the role, or to all, is
compared with what the same role was given in the group, and only the role's turns get the advantage. Rewards of turns
are summed over all later turns of the episode, in whichever trajectory they are: what a turn influences starts later.

What calls cost counts with what was given for the whole episode: only turns that call have a cost, and compared with
each other alone they couldn't be worse than a turn without a call.

An estimator of a plugin may take the place of both. Episodes that failed are trained on in no case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from toolrl.errors import RewardError
from toolrl.protocols import AdvantageEstimator, Credit
from toolrl.types import Episode, Group, RewardEntry, Trajectory
from toolrl_plugin_torch.algorithm import AlgorithmConfig, OverlongConfig
from toolrl_plugin_torch.objective.advantage import flat_groups, group_advantages
from toolrl_plugin_torch.objective.kl_reward import without_kl

_COST = "call_cost"
"""Source of what calls cost."""

TRUNCATED = ("max_tokens", "context_full", "timeout")
"""Stop reasons of episodes that ran out of tokens or time."""


@dataclass(frozen=True, slots=True)
class CreditedEpisodes:
    """The episodes to train on, with their advantages."""

    episodes: Sequence[Episode]
    """In the order of their groups; without those that failed, and without those of dropped groups."""
    advantages: Sequence[Credit]
    """One for each episode."""
    metrics: Mapping[str, float]
    """groups/flat: the share of groups whose rewards were all equal; with `drop_flat_groups` of those dropped."""


def credit(
    groups: Sequence[Group], algorithm: AlgorithmConfig, estimator: AdvantageEstimator | None = None
) -> CreditedEpisodes:
    """Advantages of a step's episodes. `estimator` stands for the built-in ones.

    With `drop_flat_groups`, groups that `is_flat` are left out (DAPO, arXiv 2503.14476, section 3.2, without the
    re-sampling); with `mask_truncated`, episodes that ran out of tokens or time (section 3.4 there). Raises RewardError
    where the estimator gives another number of advantages.
    """
    episodes = [(episode, number) for number, group in enumerate(groups) for episode in group.episodes]
    if not episodes:
        return CreditedEpisodes((), (), {"groups/flat": 0.0, "episodes/trained": 0.0})
    rewards = {role: RoleRewards(groups, role, algorithm.overlong) for role in _roles(groups)}
    if estimator is not None:
        advantages = _estimated(estimator, groups)
    else:
        advantages = _joined([it for it, _ in episodes], {role: it.credits(algorithm) for role, it in rewards.items()})
    if algorithm.drop_flat_groups:
        flat = [is_flat(group, algorithm) for group in groups]
    else:
        if algorithm.kl_in == "reward":
            given = [without_kl(group) for group in groups]
            rewards = {role: RoleRewards(given, role, algorithm.overlong) for role in rewards}
        flat = torch.stack([it.flat(algorithm) for it in rewards.values()]).all(0).tolist()
    kept = [
        (episode, advantage)
        for (episode, number), advantage in zip(episodes, advantages, strict=True)
        if episode.failure is None
        and not (algorithm.drop_flat_groups and flat[number])
        and not (algorithm.mask_truncated and episode.stop_reason in TRUNCATED)
    ]
    metrics = {"groups/flat": sum(flat) / max(len(groups), 1), "episodes/trained": float(len(kept))}
    penalties = torch.cat([it.penalties_B[it.valid_B] for it in rewards.values()])
    if algorithm.overlong and len(penalties):
        metrics["overlong/penalty"] = float(penalties.mean())
    return CreditedEpisodes([episode for episode, _ in kept], [advantage for _, advantage in kept], metrics)


def sampled_entropy(groups: Sequence[Group]) -> dict[str, float]:
    """The mean of −log p over all sampled tokens that may be trained on, p as they were sampled: its expectation is the
    entropy, and groups that teach nothing need no pass over the model for it."""
    trained = [it for group in groups for episode in group.scored for it in episode.trajectories if it.trained]
    tokens = sum(sum(trajectory.loss_mask) for trajectory in trained)
    total = sum(sum(trajectory.logprobs) for trajectory in trained)  # Of other tokens they are 0.
    return {"entropy": (0.0 - total) / tokens} if tokens else {}


def is_flat(group: Group, algorithm: AlgorithmConfig) -> bool:
    """Whether the filter leaves a group out: all of its answers are correct or all wrong, or its rewards, as `credit`
    compares them but without the penalty for length and the divergence from the reference, are all equal. Else brevity
    alone would be learned from it."""
    correct = {episode.correct for episode in group.scored}
    judged = algorithm.filter_metric == "correct" and None not in correct
    if not group.episodes or (judged and len(correct) < 2):
        return True
    group = without_kl(group)
    return all(bool(RoleRewards([group], role).flat(algorithm)[0]) for role in _roles([group]))


def overlong_penalty(tokens: int, settings: OverlongConfig) -> float:
    """What is added to the reward of an episode with so many sampled tokens, 0 or less (arXiv 2503.14476, equation
    13)."""
    over = tokens - (settings.tokens - settings.buffer)
    return -settings.penalty * min(max(over / settings.buffer, 0.0), 1.0)


def token_advantages(trajectory: Trajectory, advantage: Credit) -> list[float]:
    """An advantage for each of a trajectory's tokens (length T), 0 where the loss mask is 0.

    A number is credited to every sampled token. A mapping credits each turn's sampled tokens with the value, or the
    values, under the turn's index, and must name every turn that has sampled tokens.
    """
    if isinstance(advantage, Mapping):
        values_T = [0.0] * len(trajectory.ids)
        for turn in trajectory.turns:
            spans = [segment.tokens for segment in turn.segments if segment.origin == "model"]
            places = [place for span in spans for place in range(*span)]
            if places:
                credited = advantage[turn.index]
                values = credited if isinstance(credited, Sequence) else [credited] * len(places)
                for place, value in zip(places, values, strict=True):
                    values_T[place] = value
        return [value if sampled else 0.0 for value, sampled in zip(values_T, trajectory.loss_mask, strict=True)]
    return [advantage if sampled else 0.0 for sampled in trajectory.loss_mask]


def _roles(groups: Sequence[Group]) -> list[str]:
    """Those that are trained."""
    episodes = (episode for group in groups for episode in group.episodes)
    return sorted({it.role for episode in episodes for it in episode.trajectories if it.trained}) or ["agent"]


def _joined(episodes: Sequence[Episode], by_role: Mapping[str, Sequence[Credit]]) -> list[Credit]:
    """Each episode's advantage: a role's own where there is one role, else that of each turn by its role."""
    if len(by_role) == 1:
        return list(next(iter(by_role.values())))
    joined: list[Credit] = []
    for row, episode in enumerate(episodes):
        trained = [it for it in episode.trajectories if it.trained and episode.failure is None]
        turns = {turn.index: by_role[it.role][row] for it in trained for turn in it.turns}
        joined.append({turn: it[turn] if isinstance(it, Mapping) else it for turn, it in turns.items()})
    return joined


def by_role(groups: Sequence[Group], estimate: Callable[[RoleRewards], Sequence[Credit]]) -> list[list[Credit]]:
    """What `AdvantageEstimator.advantages` returns, for an `estimate` that sees the rewards of one trained role and
    returns an advantage for each of its B episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    if not episodes:
        return [[] for _ in groups]
    joined = iter(_joined(episodes, {role: estimate(RoleRewards(groups, role)) for role in _roles(groups)}))
    return [[next(joined) for _ in group.episodes] for group in groups]


class RoleRewards:
    """The rewards of one role in a step's episodes: B episodes in the order of their groups, N turns that were given
    any."""

    def __init__(self, groups: Sequence[Group], role: str, overlong: OverlongConfig | None = None) -> None:
        self.role = role
        self.episodes = [episode for group in groups for episode in group.episodes]
        self.groups_B = torch.tensor([number for number, group in enumerate(groups) for _ in group.episodes])
        own = [[it for it in episode.trajectories if it.role == role and it.trained] for episode in self.episodes]
        failed = [episode.failure is not None for episode in self.episodes]
        self.valid_B = torch.tensor([bool(its) and not bad for its, bad in zip(own, failed, strict=True)])
        """False for episodes that failed, and for those in which the role doesn't speak."""
        tokens = [sum(sum(it.loss_mask) for it in its) for its in own]
        penalties = [overlong_penalty(count, overlong) if overlong else 0.0 for count in tokens]
        self.penalties_B = torch.tensor(penalties, dtype=torch.float64)
        self.entries = [[it for it in episode.rewards if it.role in (None, role)] for episode in self.episodes]
        """The parts of each episode's reward that are credited to the role, or to all."""
        outcomes = [
            sum(it.weight * it.value for it in given if not _of_turn(it)) + penalty
            for given, penalty in zip(self.entries, penalties, strict=True)
        ]
        self.outcomes_B = torch.tensor(outcomes, dtype=torch.float64)
        """What was given for the whole episode, less what its calls cost."""
        steps = [_step_rewards(given) for given in self.entries]
        self.totals_B = self.outcomes_B + torch.tensor([sum(of.values()) for of in steps], dtype=torch.float64)
        """With what was given for its turns."""
        self._turns = [(row, turn) for row, of in enumerate(steps) for turn in of]
        self._rewards_N = torch.tensor([value for of in steps for value in of.values()], dtype=torch.float64)
        self._rows_N = torch.tensor([row for row, _ in self._turns], dtype=torch.int64)

    def credits(self, algorithm: AlgorithmConfig) -> Sequence[Credit]:
        """What each episode's turns of this role get."""
        if algorithm.credit == "turn":
            return self.by_turn(algorithm)
        return self.compared(self.totals_B, algorithm).tolist()

    def compared(self, rewards_B: torch.Tensor, algorithm: AlgorithmConfig) -> torch.Tensor:
        """Advantages of the episodes by these rewards."""
        return _compared(rewards_B, self.groups_B, self.valid_B, algorithm)

    def by_turn(self, algorithm: AlgorithmConfig) -> list[Credit]:
        """An advantage for each turn: the episode's own, and the discounted sum of those of the turn and of later
        ones."""
        outcomes = self.compared(self.outcomes_B, algorithm).tolist()
        compared = _compared(self._rewards_N, self.groups_B[self._rows_N], self.valid_B[self._rows_N], algorithm)
        steps = dict(zip(self._turns, compared.tolist(), strict=True))
        credited: list[Credit] = []
        for row, (episode, outcome) in enumerate(zip(self.episodes, outcomes, strict=True)):
            of_turns: dict[int, float | Sequence[float]] = {}
            later = 0.0
            for turn in reversed(episode.turns):
                later = steps.get((row, turn.index), 0.0) + algorithm.discount * later
                of_turns[turn.index] = outcome + later
            credited.append(of_turns)
        return credited

    def flat(self, algorithm: AlgorithmConfig) -> torch.Tensor:
        """Groups that teach nothing, bool [G]: equal rewards, or with the credit of turns equal outcomes and equal
        rewards of turns. A plugin's estimator is judged by their sum."""
        if algorithm.credit != "turn" or algorithm.advantage is not None:
            return flat_groups(self.totals_B, self.groups_B, self.valid_B)
        flat_G = flat_groups(self.outcomes_B, self.groups_B, self.valid_B)
        # Groups after the last that has rewards of turns aren't in what this gives.
        of_turns = flat_groups(self._rewards_N, self.groups_B[self._rows_N], self.valid_B[self._rows_N])
        flat_G[: len(of_turns)] &= of_turns
        return flat_G


def _of_turn(entry: RewardEntry) -> bool:
    return entry.turn is not None and entry.source != _COST


def _step_rewards(entries: Sequence[RewardEntry]) -> dict[int, float]:
    """What each turn of an episode was given, where it was given anything; without the cost of its calls."""
    rewards: dict[int, float] = {}
    for entry in entries:
        if entry.turn is not None and _of_turn(entry):
            rewards[entry.turn] = rewards.get(entry.turn, 0.0) + entry.weight * entry.value
    return rewards


def _compared(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, algorithm: AlgorithmConfig
) -> torch.Tensor:
    assert algorithm.baseline != "critic", "a critic is an estimator of its own"
    return group_advantages(rewards, groups, valid, baseline=algorithm.baseline, scale=algorithm.scale)


def _estimated(estimator: AdvantageEstimator, groups: Sequence[Group]) -> list[Credit]:
    """The advantages of a plugin's estimator, one for each episode. Raises RewardError where that gives another
    number of them."""
    given = [list(of_group) for of_group in estimator.advantages(groups)]
    if [len(of_group) for of_group in given] != [len(group.episodes) for group in groups]:
        raise RewardError(
            f"the advantage estimator {getattr(estimator, 'label', type(estimator).__name__)} gave "
            f"{[len(of_group) for of_group in given]} advantages for groups of "
            f"{[len(group.episodes) for group in groups]} episodes"
        )
    pairs = zip((episode for group in groups for episode in group.episodes), chain(*given), strict=True)
    return [value if episode.failure is None else 0.0 for episode, value in pairs]
