"""The ranks: the processes that train one model together.

Each samples its share of a step's groups and computes its share of the update; all hold the same step, the same data
position and the same random state, and come to the same metrics. They exchange data through a `Ranks`:
every rank calls the same method with the same label at the same point of its run.

`Ranks` itself is the only rank of one process: it returns its own values, and imports nothing of torch.
`toolrl_plugin_torch.sharding.process_group` has that of several.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from toolrl.errors import ToolrlError
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.source import RolloutWorkers, SamplesRounds, TakesWeights

T = TypeVar("T")


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that are to train together."""
    return "RANK" in environment and int(environment.get("WORLD_SIZE", "1")) > 1


class RankError(ToolrlError):
    """The ranks can't go on together: one is gone, late, or at another point of the run."""


class LostRanksError(RankError):
    """Other ranks are gone or late without a reported reason. By its exit status a supervisor knows that a restart may
    help."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h


class OtherRankError(RankError):
    """Another rank failed, and reported why."""

    rank: int = -1
    """Which one."""


class SharedRollout(SamplesRounds, TakesWeights, Protocol):
    """Rollout workers that all ranks use together, each call with the same arguments."""


class Ranks:
    """The only rank of one process."""

    rank: int = 0
    """This process's, counted from 0."""
    size: int = 1
    """How many there are."""
    device_name: str | None = None
    """The device that this rank computes on, where the config leaves that to it."""
    distributed: ClassVar[bool] = False
    """Whether weights are spread over a process group, and so whether ranks have to meet; it may be one of a single
    rank."""

    @property
    def first(self) -> bool:
        """Whether this rank writes what a run leaves."""
        return self.rank == 0

    def gather(self, value: T, what: str) -> list[T]:
        """Every rank's value, by rank. `what` names the point of the run, as in "rank 1 waits for …". Raises RankError
        where a rank is gone, doesn't come in time, or is at another point."""
        return [value]

    def broadcast(self, value: T, what: str) -> T:
        """The first rank's value."""
        return self.gather(value if self.first else None, what)[0]  # type: ignore[return-value]

    def barrier(self, what: str) -> None:
        """Wait until all ranks are here."""
        self.gather(None, what)

    def sum(self, values: Sequence[float], what: str) -> list[float]:
        """Number by number over the ranks, correctly rounded: the same on all."""
        return [math.fsum(column) for column in zip(*self.gather(tuple(values), what), strict=True)]

    def largest(self, value: int, what: str) -> int:
        """The greatest of the ranks' values."""
        return max(self.gather(value, what))

    def by_first(self, work: Callable[[], T], what: str) -> T:
        """What `work` gives on the first rank; the others don't call it. Where it raises, all do."""
        return work()

    async def all_of(self, work: Coroutine[Any, Any, T], what: str) -> list[T]:
        """Every rank awaits a part of its own; all get all parts, by rank. Where one raises, all do. Where one was
        interrupted, all are cancelled here."""
        return [await work]

    async def from_first(self, work: Coroutine[Any, Any, T] | None, what: str) -> T:
        """What the first rank gets from awaiting `work`; the others have none. Where it raises, all do. Where one was
        interrupted, all are cancelled here."""
        assert work is not None, "the first rank does it"
        return await work

    # What all ranks sample together.

    def runner(self, *arguments: Any, **options: Any) -> Runner:
        """A `Runner`, made with these arguments, whose rounds all ranks share."""
        return Runner(*arguments, **options)

    def rollout(self, workers: RolloutWorkers | None) -> SharedRollout:
        """The first rank's rollout workers, as all ranks use them together; the other ranks have none."""
        assert workers is not None, "the first rank has them"
        return workers

    def use_device(self) -> None:
        """To be called in a thread before it computes: torch keeps the current device by thread."""

    def interrupt(self) -> None:
        """End the run at the next point where the ranks meet."""

    def leave(self) -> None:
        """After the last exchange of a run that ended well."""

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Wraps a run: an error in it is reported to the other ranks, and where this rank fails because of another,
        that rank's error is raised."""
        yield


ONE = Ranks()
