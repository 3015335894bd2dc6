"""The KL divergence from the reference as a part of the reward: `algorithm.kl_in: reward`.

Each sampled token's reward loses

    kl_coef · (log-probability as sampled − the reference's)

as in InstructGPT (arXiv 2203.02155, equation 2), verl's `use_kl_in_reward` and TRL's RLOO, which both take the
trainer's log-probabilities where these are the engine's. The mean over the policy's samples is the divergence, without
bias. It enters as a reward of the token's turn, so that every estimator sees it: an episode's reward loses the sum over
its tokens, and a critic of tokens takes each for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from toolrl.types import Episode, Group, RewardEntry, Trajectory

SOURCE = "kl"
"""Of the entries."""


@dataclass(frozen=True, slots=True)
class KlEntry(RewardEntry):
    """What a turn loses, or an episode for tokens of no turn; its weight is the coefficient."""

    tokens: tuple[float, ...] = ()
    """What each of its sampled tokens loses, before the weight; `value` is their sum."""


def scored_episodes(groups: Sequence[Group]) -> list[Episode]:
    """Those that didn't fail, in order: what has a divergence."""
    return [episode for group in groups for episode in group.scored]


def with_kl(
    groups: Sequence[Group], reference_logprobs: Sequence[Sequence[float]], coefficient: float
) -> tuple[list[Group], dict[str, float]]:
    """The groups with what the divergence costs among their rewards, and its metrics. `reference_logprobs`: of the
    sampled tokens of each trained trajectory of the `scored_episodes`."""
    trained = [(episode, it) for episode in scored_episodes(groups) for it in episode.trajectories if it.trained]
    divergences: list[dict[int, float]] = []
    entries: dict[int, list[RewardEntry]] = {id(episode): [] for episode, _ in trained}
    for (episode, it), reference in zip(trained, reference_logprobs, strict=True):
        places = [place for place, sampled in enumerate(it.loss_mask) if sampled]
        known = {place: it.logprobs[place] - of for place, of in zip(places, reference, strict=True)}
        divergences.append(dict(known))
        entries[id(episode)] += _entries(it, known, coefficient)
    found = [
        replace(
            group, episodes=tuple(replace(it, rewards=(*it.rewards, *entries.get(id(it), ()))) for it in group.episodes)
        )
        for group in groups
    ]
    tokens = [value for of in divergences for value in of.values()]
    if not tokens:
        return found, {}
    return found, {"kl": sum(tokens) / len(tokens), "kl/penalty": -coefficient * sum(tokens) / len(entries)}


def without_kl(group: Group) -> Group:
    """The group with the rewards that it was given."""
    episodes = (replace(it, rewards=tuple(of for of in it.rewards if of.source != SOURCE)) for it in group.episodes)
    return replace(group, episodes=tuple(episodes))


def _entries(trajectory: Trajectory, known: dict[int, float], coefficient: float) -> Iterator[RewardEntry]:
    """By turn; `known` holds the divergence at each sampled token, and is emptied."""

    def entry(turn: int | None, tokens: tuple[float, ...]) -> KlEntry:
        return KlEntry(turn, SOURCE, sum(tokens), coefficient, trajectory.role, tokens)

    for turn in trajectory.turns:
        spans = [segment.tokens for segment in turn.segments if segment.origin == "model"]
        yield entry(turn.index, tuple(-known.pop(place, 0.0) for span in spans for place in range(*span)))
    if known:
        yield entry(None, tuple(-value for value in known.values()))
