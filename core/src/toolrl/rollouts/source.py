"""What training and evaluation need of rollout: groups of episodes for tasks, and a policy for failures.

`toolrl.rollouts.runner.Runner` samples in this process, the `RolloutWorkers` of a cluster in others. Neither knows the
order of the data or what becomes of the groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from toolrl.errors import RunStoppedError
from toolrl.protocols import WeightSource
from toolrl.rollouts.environment import Limits
from toolrl.types import Episode, EpisodeFailure, Group, Task

_log = logging.getLogger(__name__)

_FEWEST_CRASHES = 8
"""Fewer say nothing of a tool's health."""


class SamplesRounds(Protocol):
    """Samples rounds of episodes. For one event loop."""

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """`group_size` episodes of each task; groups in the order of `tasks`.

        `round_id` makes group names and seeds unique in the run ("train-12", "eval-12"). Raises RunStoppedError where
        more than max_error_rate of the episodes failed; episodes in flight are cancelled when this is cancelled.
        """
        ...


class GroupSource(SamplesRounds, Protocol):
    """Also samples single groups, for a caller that keeps many in flight. For one event loop."""

    async def group(
        self, task: Task, number: int, group_size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        """The episodes of one task: the caller notifies observers and checks for failures.

        `number` is the group's in its round; `gate` is one for all groups that share a bound on what is in flight.
        """
        ...

    def gate(self) -> asyncio.Semaphore:
        """A new bound on the episodes in flight."""
        ...

    def notify(self, groups: Iterable[Group]) -> None:
        """Notify observers of these groups, as `run` does of its own."""
        ...

    def check(self, groups: Sequence[Group]) -> None:
        """Raises RunStoppedError where more than max_error_rate of the episodes failed, or of their calls crashed."""
        ...


class TakesWeights(Protocol):
    """Samples from weights that it is handed: an engine, or all engines of a cluster."""

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on; returns when no token comes from older ones any more."""
        ...


class RolloutWorkers(GroupSource, TakesWeights, Protocol):
    """All rollout workers of a run."""

    def metrics(self) -> dict[str, float]:
        """Since this was last asked: workers and groups that were lost; and how many workers there are now."""
        ...

    def status(self) -> dict[str, Any]:
        """What each worker does now, for `toolrl status`."""
        ...


class FailurePolicy:
    """Notifies observers of episodes, logs the first failure of each part, and stops a run of which too many fail."""

    def __init__(self, max_error_rate: float, on_episode: Callable[[Episode], None] | None = None) -> None:
        self._max_error_rate = max_error_rate
        self._on_episode = on_episode
        self._failed: set[tuple[str, str]] = set()
        """Fault and component of failures that were logged."""

    def notify(self, groups: Iterable[Group]) -> None:
        """Notify observers of all episodes of these groups."""
        for group in groups:
            self.notify_episodes(group.episodes)

    def notify_episodes(self, episodes: Iterable[Episode]) -> None:
        """The one place from which observers get an episode."""
        for episode in episodes:
            if episode.failure is not None:
                self._log_first(episode.id, episode.failure)
            if self._on_episode is not None:
                self._on_episode(episode)

    def _log_first(self, episode: str, failure: EpisodeFailure) -> None:
        """Log the traceback of the first failure in each part: a thousand episodes would print a thousand."""
        if (failure.fault, failure.component) not in self._failed:
            self._failed.add((failure.fault, failure.component))
            _log.error(
                "episode %s failed in the %s: %s; later failures there are only counted (errors/count)\n%s",
                episode, _part(failure), failure.message, failure.traceback,
            )  # fmt: skip

    def check(self, groups: Sequence[Group]) -> None:
        """Raises RunStoppedError where more than max_error_rate of the episodes failed, or of their calls crashed."""
        episodes = [episode for group in groups for episode in group.episodes]
        self._check_crashes(episodes)
        failures = [episode.failure for episode in episodes if episode.failure is not None]
        if len(failures) <= self._max_error_rate * len(episodes):
            return
        (fault, component), count = Counter((f.fault, f.component) for f in failures).most_common(1)[0]
        example = next(f for f in failures if (f.fault, f.component) == (fault, component))
        raise RunStoppedError(
            f"{len(failures)} of {len(episodes)} episodes failed, more than rollout.max_error_rate "
            f"{self._max_error_rate:g} allows; {count} of them in the {_part(example)}: {example.message}",
            hint="The episodes with their tracebacks are in the run folder. Mend the cause, then run it again: "
            "with --resume to go on (train, sft), else with --overwrite.",
        )

    def _check_crashes(self, episodes: Sequence[Episode]) -> None:
        """A crash of a tool is text for the model and fails no episode; a dead tool would train on nothing but that."""
        records = [record for episode in episodes for record in episode.calls]
        crashed = [record for record in records if record.result.error == "crash"]
        if len(crashed) < _FEWEST_CRASHES or len(crashed) <= self._max_error_rate * len(records):
            return
        name, count = Counter(record.call.name for record in crashed).most_common(1)[0]
        raise RunStoppedError(
            f"{len(crashed)} of {len(records)} tool calls crashed, more than rollout.max_error_rate "
            f"{self._max_error_rate:g} allows; {count} of them in {name!r}",
            hint="The log has the tool's first traceback. Mend the tool, or have it raise ToolError for what the model "
            "should read; then run it again: with --resume to go on (train, sft), else with --overwrite.",
        )


def _part(failure: EpisodeFailure) -> str:
    """The part at fault, such as `reward (judge)`."""
    return failure.fault if failure.component == failure.fault else f"{failure.fault} ({failure.component})"
