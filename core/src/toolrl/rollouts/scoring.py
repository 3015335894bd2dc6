"""An episode's reward: the sum of its parts, with what reward functions give when it has ended.

    reward = Σ step rewards − call_cost · calls + Σ weight · tool's reward + Σ weight · reward function

A coroutine function is awaited on the event loop; a plain function runs in a thread, one call of a reward at a time, so
that it may compute and wait without holding up the episodes. A reward that scores groups gets all episodes of a task at
once. An exception, a wrong result or a time-out of a reward fails its episodes and loses none.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from toolrl.errors import RewardError, ToolrlError, ToolsetError
from toolrl.protocols import Reward, ScoresGroups
from toolrl.tools.cancellation import TooLateError, Watch
from toolrl.tools.loop_watch import call_component, run_stoppable
from toolrl.tools.results import LARGEST
from toolrl.tools.threads import POOL, Job
from toolrl.tools.values import as_number
from toolrl.tracebacks import author_place, format_error, message_of
from toolrl.types import Episode, EpisodeFailure, RewardEntry, Score, Turn

_SOURCES = ("call_cost", "harness", "mean", "model", "tool")
"""Other sources of rewards and metrics; `reward/mean` is the reward's own mean."""


@dataclass(frozen=True)
class NamedReward:
    """A reward function of an environment."""

    name: str
    reward: Reward | ScoresGroups
    weight: float = 1.0
    timeout: float | None = None
    """Seconds for one episode, or one group; None for no limit. Waiting for a thread isn't counted."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False, compare=False)
    """For a reward that is no coroutine function: its calls run in a thread, one at a time."""
    jobs: list[Job[Any]] = field(default_factory=list, repr=False, compare=False)
    """The last of these calls, which may run on after it was given up."""

    @cached_property
    def scores_groups(self) -> bool:
        """True where it sees all episodes of a task at once."""
        return isinstance(self.reward, ScoresGroups)


def reward_names(uses: Iterable[str]) -> list[str]:
    """The names of an environment's rewards, which metrics and reward entries use, from what the config calls them.

    A second `judge` is `judge-2`, and a reward that is called like another source of rewards or metrics, such as
    `tool`, is `tool-reward`.
    """
    named = [f"{use}-reward" if use in _SOURCES else use for use in uses]
    names: list[str] = []
    for number, name in enumerate(named):
        taken = {*names, *named[number + 1 :]} if name in names else set(names)
        numbered = (f"{name}-{count}" for count in range(2, len(named) + 2))
        names.append(next(it for it in (name, *numbered) if it not in taken))
    return names


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
                source = f"step:{name}-tool" if name == "environment" else f"step:{name}"
                self.entries.append(RewardEntry(turn.index, source, value))
            for key, value in record.result.metrics.items():
                key = f"tool/{name}/{key}"
                self.metrics[key] = finite(key, self.metrics.get(key, 0.0) + value, ToolsetError)
        if self._call_cost:
            self.entries.append(RewardEntry(turn.index, "call_cost", -float(len(turn.calls)), self._call_cost))

    def add_reply(self, turn: Turn, value: float | None) -> None:
        """An environment's reward for a turn that it replied to."""
        if value is not None:
            self.entries.append(RewardEntry(turn.index, "step:environment", value))

    def add_toolsets(self, entries: Iterable[RewardEntry]) -> None:
        """The toolsets' own rewards."""
        self.entries += entries

    def add_score(self, named: NamedReward, score: Any, episode: Episode) -> None:
        """What a reward function, or the harness, gave for an episode. Raises RewardError for what is no Score."""
        with _blaming(named):
            self._add_score(named, score, episode)

    def _add_score(self, named: NamedReward, score: Any, episode: Episode) -> None:
        if not isinstance(score, Score):
            raise RewardError(f"reward {named.name!r} gave {type(score).__name__} {score!r:.80}, expected a Score")
        try:
            entries, metrics = _read(named, score, episode)
        except RewardError:
            raise
        except Exception as error:  # a value that isn't even a number
            raise reward_raised(named, error) from error
        if again := sorted(metrics.keys() & self.metrics.keys()):
            raise RewardError(f"reward {named.name!r}: another reward has the metric {again[0]!r} too; rename one")
        self.entries += entries
        self.metrics.update(metrics)
        names = (*(it.name for it in self._functions), "harness")
        judged = (self.metrics[key] for name in names if (key := f"{name}/correct") in self.metrics)
        for first in judged:  # The first one of the config that judges the answer is what accuracy means.
            self.metrics["correct"] = first
            break

    def check(self) -> None:
        """Raises RewardError where the parts add up to no finite number."""
        finite("the sum of all rewards", sum(entry.weight * entry.value for entry in self.entries))


def finite(name: str, value: Any, error: type[ToolrlError] = RewardError) -> float:
    """The number, which may be of numpy or torch, as a float. Raises `error` for one that can't be trained on."""
    try:
        number = as_number(value)
    except TypeError:
        raise error(f"{name!r} gave {type(value).__name__} {value!r:.80}, expected a number") from None
    if not abs(number) <= LARGEST:
        raise error(f"{name!r} gave {number:g}, expected a finite number of at most {LARGEST:g}")
    return number


def failure_of(error: BaseException, fault: str, hide: Callable[[str], str]) -> EpisodeFailure:
    """An exception as an episode keeps it; `fault` is the faulty part where the exception doesn't name it."""
    fault = error.fault if isinstance(error, ToolrlError) else fault
    component = (error.component or error.where if isinstance(error, ToolrlError) else None) or fault
    text = f"{type(error).__name__}: {message_of(error)}"
    return EpisodeFailure(fault, component, hide(text), hide(format_error(error)))


def reward_raised(named: NamedReward, error: BaseException) -> RewardError:
    """The error that names a reward function which raised, with the file and line of the user's code."""
    place = author_place(error)
    at = f" ({place})" if place else ""
    raised = RewardError(f"reward {named.name!r} raised {type(error).__name__}: {message_of(error)}{at}")
    raised.component = named.name
    return raised


@contextmanager
def _blaming(named: NamedReward) -> Iterator[None]:
    """Put a reward's name on the RewardErrors that are raised inside."""
    try:
        yield
    except RewardError as error:
        error.component = named.name
        raise


def _read(named: NamedReward, score: Score, episode: Episode) -> tuple[list[RewardEntry], dict[str, float]]:
    """The parts of the reward that a score stands for, and its metrics under their full names."""
    source = f"reward:{named.name}"
    entries = [RewardEntry(None, source, finite(named.name, score.value), named.weight)]
    turns, roles = {turn.index for turn in episode.turns}, {it.role for it in episode.trajectories}
    for index, credit in score.per_turn.items():
        if index not in turns:
            raise ValueError(f"per_turn names the turn {index!r}, and the episode has {len(turns)}")
        entries.append(RewardEntry(int(index), source, finite(named.name, credit), named.weight))
    for role, credit in score.per_role.items():
        if role not in roles:
            raise ValueError(f"per_role names the role {role!r}, and the episode has {', '.join(sorted(roles))}")
        entries.append(RewardEntry(None, source, finite(named.name, credit), named.weight, role))
    metrics = {f"{named.name}/{key}": value for key, value in score.metrics.items()}
    return entries, {key: finite(key, value) for key, value in metrics.items()}


# Calling reward functions.


async def score_of(named: NamedReward, episode: Episode) -> Any:
    """What a reward gives for one episode. Raises RewardError."""
    with _blaming(named):
        return await _ask(named, "score", episode)


async def scored_together(
    episodes: Sequence[Episode], rewards: Sequence[NamedReward], hide: Callable[[str], str] = str
) -> list[Episode]:
    """The episodes of one group, in order, with the scores of rewards that compare them; failed ones are left out."""
    found = list(episodes)
    for named in rewards:
        places = [place for place, episode in enumerate(found) if episode.failure is None]
        if not isinstance(named.reward, ScoresGroups) or not places:
            continue
        for place, score in zip(places, await _group_scores(named, [found[it] for it in places]), strict=True):
            found[place] = _settled(found[place], named, score, rewards, hide)
    return found


async def _group_scores(named: NamedReward, episodes: Sequence[Episode]) -> Sequence[Any]:
    """A score or an exception for each episode."""
    try:
        with _blaming(named):
            scores = await _ask(named, "score_group", tuple(episodes))
            if not isinstance(scores, Sequence) or len(scores) != len(episodes):
                given = f"{len(scores)} scores" if isinstance(scores, Sequence) else type(scores).__name__
                text = f"reward {named.name!r} gave {given} for {len(episodes)} episodes, expected one for each"
                raise RewardError(text)
    except Exception as error:  # noqa: BLE001 - no cancellation, `_ask` saw to that: it is these episodes' data
        return [error] * len(episodes)
    return scores


def _settled(
    episode: Episode, named: NamedReward, score: Any, rewards: Sequence[NamedReward], hide: Callable[[str], str]
) -> Episode:
    """The episode with a score, or failed."""
    try:
        if isinstance(score, BaseException):
            raise score if isinstance(score, RewardError) else reward_raised(named, score) from score
        reward = EpisodeReward.of(episode, rewards)
        reward.add_score(named, score, episode)
        reward.check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this episode's data
        return replace(episode, failure=failure_of(error, "reward", hide), stop_reason="error")
    return reward.put_on(episode)


async def _ask(named: NamedReward, method: str, argument: Any) -> Any:
    """Call a reward's method. Raises RewardError."""
    function, name = getattr(named.reward, method), f"reward {named.name!r}"
    watch = Watch()
    try:
        if inspect.iscoroutinefunction(function):
            return await run_stoppable(name, function, argument, seconds=named.timeout)
        async with named.turn:
            if named.jobs and not named.jobs[-1].ended:
                returned = asyncio.Event()
                named.jobs[-1].when_ended(returned.set)
                await run_stoppable(name, returned.wait, seconds=named.timeout)
            job = POOL.submit(call_component, function, argument)
            named.jobs[:] = [job]
            result = await run_stoppable(name, lambda: job, seconds=named.timeout)
        return (
            await run_stoppable(name, lambda: result, seconds=named.timeout) if inspect.isawaitable(result) else result
        )
    except RewardError:
        raise
    except TooLateError:
        raise RewardError(
            f"{name} gave no score within {named.timeout:g} s",
            hint="Find out what it waits for, or raise its `timeout` in the config.",
        ) from None
    except BaseException as error:
        if not watch.failed(error):
            raise
        raise reward_raised(named, error) from error
