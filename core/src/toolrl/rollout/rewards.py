"""An episode's reward, put together from its parts: the one place that adds a part or a metric to it.

reward = Σ step rewards − call_cost · calls + Σ weight · tool's reward + Σ weight · reward function
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from toolrl.errors import RewardError, ToolrlError, ToolsetError
from toolrl.protocols import Reward, ScoresGroups
from toolrl.rollout.one_at_a_time import OneAtATime
from toolrl.tracebacks import format_error
from toolrl.types import Episode, EpisodeFailure, RewardEntry, Score, Turn

LARGEST = 1e100
"""Of a reward or a metric: sums and squares of larger ones overflow in a batch."""


@dataclass(frozen=True)
class NamedReward:
    """A reward function of an environment."""

    name: str
    reward: Reward | ScoresGroups
    weight: float = 1.0
    timeout: float | None = None
    """Seconds for one episode, or one group; None for no limit. Waiting for a thread isn't counted."""
    turn: OneAtATime = field(default_factory=OneAtATime, repr=False, compare=False)
    """Admits one call at a time to a thread, for a reward that is no coroutine function."""

    @cached_property
    def scores_groups(self) -> bool:
        """True where it sees all episodes of a task at once."""
        return isinstance(self.reward, ScoresGroups)


class EpisodeReward:
    """The parts of one episode's reward, and the metrics that come with them."""

    def __init__(self, functions: Sequence[NamedReward], call_cost: float = 0.0) -> None:
        self._functions = functions
        self._call_cost = call_cost
        self.entries: list[RewardEntry] = []
        self.metrics: dict[str, float] = {}

    @classmethod
    def of(cls, episode: Episode, functions: Sequence[NamedReward]) -> EpisodeReward:
        """What a finished episode has so far."""
        reward = cls(functions)
        reward.entries, reward.metrics = list(episode.rewards), dict(episode.metrics)
        return reward

    def put_on(self, episode: Episode) -> Episode:
        """The episode with these parts and metrics."""
        return replace(episode, rewards=tuple(self.entries), metrics=dict(self.metrics))

    def add_turn(self, turn: Turn) -> None:
        """Step rewards and metrics of a turn's calls, and what the calls cost. Raises ToolsetError."""
        for record in turn.calls:
            name = record.call.name or "malformed"
            if record.result.reward is not None:
                value = finite(name, record.result.reward, ToolsetError)
                self.entries.append(RewardEntry(turn.index, f"step:{name}", value))
            for key, value in record.result.metrics.items():
                key = f"tool/{name}/{key}"
                self.metrics[key] = finite(key, self.metrics.get(key, 0.0) + float(value), ToolsetError)
        if self._call_cost:
            self.entries.append(RewardEntry(turn.index, "call_cost", -float(len(turn.calls)), self._call_cost))

    def add_reply(self, turn: Turn, value: float | None) -> None:
        """An environment's reward for a turn that it replied to."""
        if value is not None:
            self.entries.append(RewardEntry(turn.index, "step:environment", value))

    def add_toolsets(self, entries: Iterable[RewardEntry]) -> None:
        """The toolsets' own rewards."""
        self.entries += entries

    def add_score(self, named: NamedReward, score: Any, turns: int) -> None:
        """What a reward function gave for an episode with so many turns. Raises RewardError for what is no Score."""
        if not isinstance(score, Score):
            raise RewardError(f"reward {named.name!r} gave {type(score).__name__} {score!r:.80}, expected a Score")
        try:
            entries, metrics = _read(named, score, turns)
        except RewardError:
            raise
        except Exception as error:  # a value that isn't even a number
            raise reward_raised(named, error) from error
        self.entries += entries
        self.metrics.update(metrics)
        judged = (self.metrics[key] for it in self._functions if (key := f"{it.name}/correct") in self.metrics)
        for first in judged:  # The first one of the config that judges the answer is what accuracy means.
            self.metrics["correct"] = first
            break

    def check(self) -> None:
        """Raises RewardError where the parts add up to no finite number."""
        finite("the sum of all rewards", sum(entry.weight * entry.value for entry in self.entries))


def finite(name: str, value: float, error: type[ToolrlError] = RewardError) -> float:
    """The value as a float. Raises `error` for what is no number to train on."""
    value = float(value)
    if not abs(value) <= LARGEST:
        raise error(
            f"{name!r} gave {value:g}, expected a finite number of at most {LARGEST:g}",
            hint="Return 0.0 where there is nothing to say.",
        )
    return value


def failure_of(error: BaseException, fault: str, hide: Callable[[str], str]) -> EpisodeFailure:
    """An exception as an episode keeps it; `fault` is the faulty part where the exception doesn't name it."""
    fault = error.fault if isinstance(error, ToolrlError) else fault
    component = (error.where if isinstance(error, ToolrlError) else None) or fault
    text = f"{type(error).__name__}: {error}"
    return EpisodeFailure(fault, component, hide(text), hide(format_error(error)))


def reward_raised(named: NamedReward, error: BaseException) -> RewardError:
    """The error that names a reward function which raised."""
    return RewardError(f"reward {named.name!r} raised {type(error).__name__}: {error}")


def _read(named: NamedReward, score: Score, turns: int) -> tuple[list[RewardEntry], dict[str, float]]:
    """The parts of the reward that a score stands for, and its metrics under their full names."""
    source = f"reward:{named.name}"
    entries = [RewardEntry(None, source, finite(named.name, score.value), named.weight)]
    for index, credit in score.per_turn.items():
        if index not in range(turns):
            raise ValueError(f"per_turn names the turn {index!r}, and the episode has {turns}")
        entries.append(RewardEntry(int(index), source, finite(named.name, credit), named.weight))
    metrics = {f"{named.name}/{key}": value for key, value in score.metrics.items()}
    return entries, {key: finite(key, value) for key, value in metrics.items()}
