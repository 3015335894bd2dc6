"""Advantages written the obvious way, from the papers' formulas, over plain lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolrl.types import Episode, Group

EPSILON = 1e-4
Advantage = Mapping[int, float | Sequence[float]]
"""Of each turn of an episode by its index, or of each of the turn's tokens."""


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)


def deviation(values: Sequence[float]) -> float:
    """Of a sample."""
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)) if values[1:] else 0.0


def compared(values: Sequence[float], groups: Sequence[Any], baseline: str, scale: str) -> list[float]:
    """Each value against those of its group, or of all; 0 where these are equal."""
    of = {group: [v for v, other in zip(values, groups, strict=True) if other == group] for group in groups}
    found = []
    for value, group in zip(values, groups, strict=True):
        own = list(values) if baseline == "batch_mean" else of[group]
        others = list(own)
        if baseline == "leave_one_out" and len(own) > 1:
            others.remove(value)
        found.append(None if max(own) - min(own) < 1e-9 else value - mean(others))
    plain = [value or 0.0 for value in found]
    shift, spreads = 0.0, [1.0] * len(plain)
    if scale == "std":
        spreads = [deviation(of[group]) + EPSILON for group in groups]
    elif scale == "batch_std":
        spreads = [deviation(values) + EPSILON] * len(plain)
    elif scale == "advantage_std":
        shift, spreads = mean(plain), [deviation(plain) + EPSILON] * len(plain)
    return [0.0 if value is None else (value - shift) / by for value, by in zip(found, spreads, strict=True)]


def sampled(episode: Episode) -> int:
    return sum(sum(it.loss_mask) for it in episode.trajectories if it.trained)


def given(episode: Episode, algorithm: Any) -> tuple[float, dict[int, float]]:
    """What an episode was given as a whole, and for its turns, what the divergence takes off among it."""
    of_turns = [entry for entry in episode.rewards if entry.turn is not None and entry.source != "call_cost"]
    whole = math.fsum(entry.weight * entry.value for entry in episode.rewards if entry not in of_turns)
    if algorithm.overlong is not None:
        how = algorithm.overlong
        over = (sampled(episode) - how.tokens + how.buffer) / how.buffer
        whole -= how.penalty * min(max(over, 0.0), 1.0)
    turns: dict[int, float] = {}
    for entry in of_turns:
        assert entry.turn is not None
        turns[entry.turn] = turns.get(entry.turn, 0.0) + entry.weight * entry.value
    return whole, turns


def by_group(groups: Sequence[Group], algorithm: Any) -> list[tuple[Episode, Advantage]]:
    """The episodes that ended, with the advantages of their turns."""
    rows = [(episode, group.id, *given(episode, algorithm)) for group in groups for episode in group.scored]
    how = (algorithm.baseline, algorithm.scale)
    names = [name for _, name, _, _ in rows]
    if algorithm.credit == "episode":
        values = compared([whole + math.fsum(turns.values()) for _, _, whole, turns in rows], names, *how)
        return alike([row[0] for row in rows], values)
    wholes = compared([whole for _, _, whole, _ in rows], names, *how)
    places = [(row, turn) for row, (_, _, _, turns) in enumerate(rows) for turn in turns]
    steps = compared([rows[row][3][turn] for row, turn in places], [names[row] for row, _ in places], *how)
    of = dict(zip(places, steps, strict=True))
    return [
        (
            episode,
            {
                turn.index: wholes[row]
                + math.fsum(
                    algorithm.discount ** (later.index - turn.index) * of.get((row, later.index), 0.0)
                    for later in episode.turns
                    if later.index >= turn.index
                )
                for turn in episode.turns
            },
        )
        for row, (episode, _, _, _) in enumerate(rows)
    ]


def gdpo(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2601.05242, section 3.1."""
    episodes = [episode for group in groups for episode in group.scored]
    names = [episode.group for episode in episodes]
    total = [0.0] * len(episodes)
    for source, weight in sorted({(entry.source, entry.weight) for it in episodes for entry in it.rewards}):
        values = [
            math.fsum(of.value for of in it.rewards if (of.source, of.weight) == (source, weight)) for it in episodes
        ]
        own = compared(values, names, "group_mean", "std")
        total = [so_far + weight * value for so_far, value in zip(total, own, strict=True)]
    return alike(episodes, compared(total, names, "batch_mean", "batch_std"))


def maxrl(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2602.02710, algorithm 1."""
    found = []
    for group in groups:
        rewards = [math.fsum(entry.weight * entry.value for entry in it.rewards) for it in group.scored]
        middle = mean(rewards)
        found += alike(group.scored, [(reward - middle) / middle if middle else 0.0 for reward in rewards])
    return found


def gigpo(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2505.10978, equations 3 and 5 to 8."""
    found = []
    for group in groups:
        rewards = [math.fsum(entry.weight * entry.value for entry in it.rewards) for it in group.scored]
        of_episodes = compared(rewards, [0] * len(rewards), "group_mean", options.scale)
        steps = [(row, *step) for row, it in enumerate(group.scored) for step in anchored(it, options)]
        compared_steps = compared(
            [value for _, _, _, value in steps], [state for _, _, state, _ in steps], "group_mean", options.scale
        )
        of_turns = {(row, turn): value for (row, turn, _, _), value in zip(steps, compared_steps, strict=True)}
        for row, episode in enumerate(group.scored):
            turns = [turn for other, turn in of_turns if other == row]
            mixed = {turn: of_episodes[row] + options.step_weight * of_turns[row, turn] for turn in turns}
            found.append((episode, mixed))
    return found


def anchored(episode: Episode, options: Any) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """Index, state and return of each turn."""
    last = episode.turns[-1].index
    earned = [(last if entry.turn is None else entry.turn, entry.weight * entry.value) for entry in episode.rewards]
    for it in episode.trajectories:
        read = 0
        for turn in it.turns if it.trained else ():
            start, end = turn.segments[0].tokens[0], turn.segments[-1].tokens[1]
            value = math.fsum(options.discount ** (when - turn.index) * of for when, of in earned if when >= turn.index)
            yield turn.index, tuple(it.ids[read:start]), value
            read = 0 if options.anchor == "conversation" else end


def alike(episodes: Sequence[Episode], values: Sequence[float]) -> list[tuple[Episode, Advantage]]:
    """The same for all turns of an episode."""
    return [(it, {t.index: value for t in it.turns}) for it, value in zip(episodes, values, strict=True)]


ESTIMATORS = {"gdpo": gdpo, "maxrl": maxrl, "gigpo": gigpo}


def flat(group: Group, algorithm: Any) -> bool:
    """Whether `drop_flat_groups` leaves a group out."""
    correct = {episode.correct for episode in group.scored}
    if algorithm.filter_metric == "correct" and None not in correct and len(correct) < 2:
        return True
    plain = algorithm.model_copy(update={"overlong": None})
    scored = [replace(it, rewards=tuple(of for of in it.rewards if of.source != "kl")) for it in group.scored]
    rewards = [given(episode, plain) for episode in scored]
    if algorithm.credit == "episode":
        lists = [[whole + math.fsum(turns.values()) for whole, turns in rewards]]
    else:
        lists = [[whole for whole, _ in rewards], [value for _, turns in rewards for value in turns.values()]]
    return all(max(values, default=0.0) - min(values, default=0.0) < 1e-9 for values in lists)


def kept(groups: Sequence[Group], credited: Sequence[tuple[Episode, Advantage]], algorithm: Any) -> list[Any]:
    """Without what the config leaves out."""
    dropped = {group.id for group in groups if algorithm.drop_flat_groups and flat(group, algorithm)}
    cut = ("max_tokens", "context_full", "timeout") if algorithm.mask_truncated else ()
    return [item for item in credited if item[0].group not in dropped and item[0].stop_reason not in cut]


def generalised(rewards: Sequence[float], values: Sequence[float], discount: float, gae_lambda: float) -> list[float]:
    """arXiv 1506.02438, equation 16."""
    steps = range(len(rewards))
    following = [*values[1:], 0.0]
    errors = [rewards[step] + discount * following[step] - values[step] for step in steps]
    return [math.fsum((discount * gae_lambda) ** (j - k) * errors[j] for j in steps if j >= k) for k in steps]
