"""Credit: which tokens of a step's episodes get which advantage.

With `credit: episode` an episode's whole reward (steps, tools and reward functions) is compared within its group, and
all of its sampled tokens share the advantage. With `credit: turn` the parts are kept apart, as GRPO does for process
rewards (arXiv 2402.03300, section 4.1.3): what was given for the whole episode is compared as before; what was given
for single turns is compared with all such rewards of the group; and the tokens of turn k get the first, and of the
second the sum over turns j ≥ k, discounted by discount^(j − k).

What calls cost counts with what was given for the whole episode: only turns that call have a cost, and compared with
each other alone they couldn't be worse than a turn without a call.

An estimator of a plugin may take the place of both. Episodes that failed are trained on in no case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from toolrl.errors import RewardError
from toolrl.protocols import AdvantageEstimator
from toolrl.types import Episode, Group, RewardEntry
from toolrl_plugin_torch.algorithm import AlgorithmConfig, OverlongConfig
from toolrl_plugin_torch.objective.advantage import flat_groups, group_advantages

Credit = float | Mapping[int, float]
"""For every sampled token of an episode, or by turn index."""

_COST = "call_cost"
"""Source of what calls cost."""

TRUNCATED = ("max_tokens", "context_full")
"""Stop reasons of episodes that ran out of tokens."""


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
    re-sampling); with `mask_truncated`, episodes that ran out of tokens (section 3.4 there). Raises RewardError where
    the estimator gives anything but a finite number for each episode or turn.
    """
    numbered = [(number, episode) for number, group in enumerate(groups) for episode in group.episodes]
    if not numbered:
        return CreditedEpisodes((), (), {"groups/flat": 0.0, "episodes/trained": 0.0})
    parts = _Parts.of(numbered, algorithm.overlong)
    if estimator is not None:
        advantages = _estimated(estimator, groups)
    elif algorithm.credit == "turn":
        advantages = _by_turn(parts, numbered, algorithm)
    else:
        whole_B = parts.outcomes_B + parts.steps_B
        advantages = _compared(whole_B, parts.groups_B, parts.valid_B, algorithm).tolist()
    flat = _flat(parts, numbered, apart=_apart(algorithm)).tolist()
    if algorithm.drop_flat_groups:
        flat = [is_flat(group, algorithm) for group in groups]
    kept = [
        (episode, advantage)
        for (number, episode), advantage in zip(numbered, advantages, strict=True)
        if episode.failure is None
        and not (algorithm.drop_flat_groups and flat[number])
        and not (algorithm.mask_truncated and episode.stop_reason in TRUNCATED)
    ]
    return CreditedEpisodes(
        [episode for episode, _ in kept],
        [advantage for _, advantage in kept],
        {
            "groups/flat": sum(flat) / max(len(groups), 1),
            "episodes/trained": float(len(kept)),
            **(parts.metrics if algorithm.overlong else {}),
        },
    )


def sampled_entropy(groups: Sequence[Group]) -> dict[str, float]:
    """The mean of −log p over all sampled tokens, p as they were sampled: its expectation is the entropy, and groups
    that teach nothing need no pass over the model for it."""
    episodes = [episode for group in groups for episode in group.scored]
    tokens = sum(episode.sampled_tokens for episode in episodes)
    total = sum(sum(episode.logprobs) for episode in episodes)  # Of other tokens they are 0.
    return {"entropy": (0.0 - total) / tokens} if tokens else {}


def is_flat(group: Group, algorithm: AlgorithmConfig) -> bool:
    """Whether the filter leaves a group out: all of its answers are correct or all wrong, or its rewards, as `credit`
    compares them but without the penalty for length, are all equal. Else brevity alone would be learned from it."""
    numbered = [(0, episode) for episode in group.episodes]
    correct = {episode.correct for episode in group.scored}
    judged = algorithm.filter_metric == "correct" and None not in correct
    if not numbered or (judged and len(correct) < 2):
        return True
    return bool(_flat(_Parts.of(numbered, None), numbered, apart=_apart(algorithm))[0])


def overlong_penalty(tokens: int, settings: OverlongConfig) -> float:
    """What is added to the reward of an episode with so many sampled tokens, 0 or less (arXiv 2503.14476, equation
    13)."""
    over = tokens - (settings.tokens - settings.buffer)
    return -settings.penalty * min(max(over / settings.buffer, 0.0), 1.0)


def token_advantages(episode: Episode, advantage: Credit) -> list[float]:
    """An advantage for each of the episode's tokens (length T), 0 where the loss mask is 0.

    A number is credited to every sampled token. A mapping credited each turn's sampled tokens with the value under the
    turn's index, and must name every turn that has sampled tokens.
    """
    if isinstance(advantage, Mapping):
        values_T = [0.0] * len(episode.ids)
        for turn in episode.turns:
            for segment in turn.segments:
                if segment.origin == "model" and segment.tokens[1] > segment.tokens[0]:
                    start, end = segment.tokens
                    values_T[start:end] = [advantage[turn.index]] * (end - start)
        return [value if sampled else 0.0 for value, sampled in zip(values_T, episode.loss_mask, strict=True)]
    return [advantage if sampled else 0.0 for sampled in episode.loss_mask]


@dataclass(frozen=True)
class _Parts:
    """The rewards of all episodes of a step: B episodes."""

    groups_B: torch.Tensor
    valid_B: torch.Tensor
    outcomes_B: torch.Tensor
    """What was given for the whole episode, less what its calls cost."""
    steps_B: torch.Tensor
    """What was given for its turns, added up."""
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, numbered: Sequence[tuple[int, Episode]], overlong: OverlongConfig | None) -> _Parts:
        penalties = [overlong_penalty(e.sampled_tokens, overlong) if overlong else 0.0 for _, e in numbered]
        outcomes = [
            sum(entry.weight * entry.value for entry in episode.rewards if not _of_turn(entry)) + penalty
            for (_, episode), penalty in zip(numbered, penalties, strict=True)
        ]
        steps = [sum(_step_rewards(episode).values()) for _, episode in numbered]
        valid_B = torch.tensor([episode.failure is None for _, episode in numbered])
        kept = [penalty for penalty, (_, episode) in zip(penalties, numbered, strict=True) if episode.failure is None]
        return cls(
            torch.tensor([number for number, _ in numbered]),
            valid_B,
            torch.tensor(outcomes, dtype=torch.float64),
            torch.tensor(steps, dtype=torch.float64),
            {"overlong/penalty": sum(kept) / len(kept)} if kept else {},
        )


def _of_turn(entry: RewardEntry) -> bool:
    return entry.turn is not None and entry.source != _COST


def _step_rewards(episode: Episode) -> dict[int, float]:
    """What each turn of an episode was given, where it was given anything; without the cost of its calls."""
    rewards: dict[int, float] = {}
    for entry in episode.rewards:
        if entry.turn is not None and _of_turn(entry):
            rewards[entry.turn] = rewards.get(entry.turn, 0.0) + entry.weight * entry.value
    return rewards


def _compared(
    rewards_B: torch.Tensor, groups_B: torch.Tensor, valid_B: torch.Tensor, algorithm: AlgorithmConfig
) -> torch.Tensor:
    assert algorithm.baseline != "critic", "a critic is an estimator of its own"
    return group_advantages(rewards_B, groups_B, valid_B, baseline=algorithm.baseline, scale=algorithm.scale)


def _by_turn(parts: _Parts, numbered: Sequence[tuple[int, Episode]], algorithm: AlgorithmConfig) -> list[Credit]:
    """An advantage for each turn of each episode."""
    outcomes = _compared(parts.outcomes_B, parts.groups_B, parts.valid_B, algorithm).tolist()
    rows = _turn_rows(numbered)
    compared = _compared(*_of_turns(rows, numbered), algorithm).tolist()
    by_row: list[dict[int, float]] = [{} for _ in numbered]
    for (row, turn, _), value in zip(rows, compared, strict=True):
        by_row[row][turn] = value
    return [
        _discounted([turn.index for turn in episode.turns], steps, outcome, algorithm.discount)
        for (_, episode), steps, outcome in zip(numbered, by_row, outcomes, strict=True)
    ]


def _turn_rows(numbered: Sequence[tuple[int, Episode]]) -> list[tuple[int, int, float]]:
    """What turns were given: the episode's position, the turn's index, the reward."""
    return [
        (row, turn, value)
        for row, (_, episode) in enumerate(numbered)
        for turn, value in _step_rewards(episode).items()
    ]


def _of_turns(
    rows: Sequence[tuple[int, int, float]], numbered: Sequence[tuple[int, Episode]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards of turns, their groups, and whether their episodes count: N rewards."""
    return (
        torch.tensor([value for *_, value in rows], dtype=torch.float64),
        torch.tensor([numbered[row][0] for row, *_ in rows], dtype=torch.int64),
        torch.tensor([numbered[row][1].failure is None for row, *_ in rows], dtype=torch.bool),
    )


def _discounted(turns: Sequence[int], steps: Mapping[int, float], outcome: float, discount: float) -> dict[int, float]:
    """By turn: the episode's own advantage, and the discounted sum of those of the turn and of later ones."""
    credited: dict[int, float] = {}
    later = 0.0
    for turn in reversed(turns):
        later = steps.get(turn, 0.0) + discount * later
        credited[turn] = outcome + later
    return credited


def _apart(algorithm: AlgorithmConfig) -> bool:
    """Whether rewards of turns count apart from the whole episode's; a plugin's estimator is judged by their sum."""
    return algorithm.credit == "turn" and algorithm.advantage is None


def _flat(parts: _Parts, numbered: Sequence[tuple[int, Episode]], *, apart: bool) -> torch.Tensor:
    """Groups that teach nothing, bool [G]: equal rewards, with `apart` equal outcomes and equal rewards of turns."""
    if not apart:
        return flat_groups(parts.outcomes_B + parts.steps_B, parts.groups_B, parts.valid_B)
    flat_G = flat_groups(parts.outcomes_B, parts.groups_B, parts.valid_B)
    rewards_N, groups_N, valid_N = _of_turns(_turn_rows(numbered), numbered)
    # Groups after the last that has rewards of turns aren't in what this gives.
    of_turns = flat_groups(rewards_N, groups_N, valid_N)
    flat_G[: len(of_turns)] &= of_turns
    return flat_G


def _estimated(estimator: AdvantageEstimator, groups: Sequence[Group]) -> list[Credit]:
    """The advantages of a plugin's estimator, checked: a NaN here would end in the weights."""
    label = f"the advantage estimator {type(estimator).__name__}"
    answers = list(estimator.advantages(groups))
    if len(answers) != len(groups):
        raise RewardError(f"{label} gave {len(answers)} entries for {len(groups)} groups")
    credited: list[Credit] = []
    for group, given in zip(groups, answers, strict=True):
        values = list(given)
        if len(values) != len(group.episodes):
            raise RewardError(f"{label} gave {len(values)} advantages for {len(group.episodes)} episodes of {group.id}")
        for episode, value in zip(group.episodes, values, strict=True):
            if episode.failure is None:
                _check_credit(value, episode, label)
            credited.append(value if episode.failure is None else 0.0)
    return credited


def _check_credit(value: Credit, episode: Episode, label: str) -> None:
    if isinstance(value, Mapping):
        lacking = [turn.index for turn in episode.turns if turn.sampled_tokens and turn.index not in value]
        if lacking:
            raise RewardError(f"{label} gave no advantage for turn {lacking[0]} of {episode.id}")
    for number in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise RewardError(f"{label} gave {number!r:.40} for {episode.id}, expected a finite number")
