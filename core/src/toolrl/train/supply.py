"""Where a step's groups come from: sampled before each update, or all the while.

`TurnTaking` samples a step's groups, and samples nothing while they are trained on: every token is of the version that
is trained. `Overlapping` keeps sampling while the trainer works. Rows of data are admitted in order, row i no sooner
than the weights have version i / rows − max_staleness, so that what is sampled can always be trained on before it is
more than `max_staleness` versions old; half-done episodes go on after an update, each token with its own version.
Groups are taken as they are finished, the oldest first, but never so that an older one would miss its last step: then
the step waits for it. So no group is thrown away for being slow, which would favour what is quick (the bound on what is
started is AReaL's, arXiv 2505.24298, section 5.1).

With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) groups whose rewards are all equal are set aside, and the
next rows of data take their place.

A supply also knows how far the data has been used; a checkpoint keeps it. Rows that were started and not trained on by
then are started again by a run that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import GroupSource
from toolrl.train.data import EndlessOrder
from toolrl.types import Group, Task


@dataclass(frozen=True)
class DataPosition:
    """How far a run has used its data."""

    next: int
    """Rows of the endless sequence that were taken: the next to take."""
    pending: tuple[int, ...] = ()
    """Of those the ones that were not trained on yet."""


class KeepsPosition(Protocol):
    """Who knows how far the data has been used, for a checkpoint."""

    def position(self, step: int) -> DataPosition:
        """After so many complete steps."""
        ...

    def resume(self, step: int, position: DataPosition) -> None:
        """Go on from there. Raises CheckpointError where this can't be."""
        ...


@dataclass(frozen=True)
class FixedRows:
    """A run whose every step takes the same number of rows."""

    rows_per_step: int

    def position(self, step: int) -> DataPosition:
        return DataPosition(step * self.rows_per_step)

    def resume(self, step: int, position: DataPosition) -> None:
        if position != self.position(step):
            raise CheckpointError(
                f"{position.next} rows of data were taken in {step} steps, and the config now takes "
                f"{self.rows_per_step} a step",
                hint="Resume with the batch size that the run began with.",
            )


@dataclass(frozen=True)
class Demand:
    """What each step asks for."""

    steps: int
    """Of the whole run."""
    rows: int
    """Groups of a step."""
    group_size: int
    limits: Limits
    flat: Callable[[Group], bool] | None = None
    """With dynamic sampling: whether a group teaches nothing and is set aside."""
    most_rounds: int = 8
    """With `flat`: a step may sample up to so many times its rows before the run stops."""

    def wanted(self, group: Group) -> bool:
        """Whether a group may be trained on."""
        return self.flat is None or not self.flat(group)


class Supply(KeepsPosition, Protocol):
    """Gives each step its groups."""

    async def take(self, step: int) -> list[Group]:
        """The groups of this step, counted from 1; it trains the weights of version step − 1."""
        ...

    def trained(self, step: int) -> None:
        """The step's update is complete."""
        ...

    def weights_are(self, version: int) -> None:
        """The engine samples from these weights now."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the groups that were taken last."""
        ...

    async def close(self) -> None:
        """Sample nothing more."""
        ...


class TurnTaking:
    """Samples before each update, and nothing during it."""

    def __init__(self, runner: GroupSource, order: EndlessOrder[Task], demand: Demand) -> None:
        self._runner = runner
        self._order = order
        self._demand = demand
        self._next = 0
        self._taken = 0
        self._set_aside = 0

    async def take(self, step: int) -> list[Group]:
        demand = self._demand
        groups: list[Group] = []
        self._taken = self._set_aside = 0
        again = 0
        while (missing := demand.rows - len(groups)) and self._taken + missing <= demand.rows * demand.most_rounds:
            tasks = self._order.take(self._next + self._taken, missing)
            self._taken += missing
            round_id = f"train-{step}.{again}" if again else f"train-{step}"
            found = await self._runner.run(tasks, demand.group_size, demand.limits, round_id=round_id)
            wanted = [group for group in found if demand.wanted(group)]
            self._set_aside += len(found) - len(wanted)
            groups += wanted
            again += 1
        if missing:
            raise _nothing_to_learn(step, self._taken, self._set_aside)
        return groups

    def trained(self, step: int) -> None:
        self._next += self._taken
        self._taken = 0

    def weights_are(self, version: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {"groups/set_aside": float(self._set_aside)} if self._demand.flat else {}

    async def close(self) -> None:
        pass

    def position(self, step: int) -> DataPosition:
        return DataPosition(self._next)

    def resume(self, step: int, position: DataPosition) -> None:
        if position.pending:
            raise CheckpointError(
                f"{len(position.pending)} rows of data were being sampled when it was written, and rollout and "
                "training now take turns",
                hint="Resume with the rollout.max_staleness that the run began with.",
            )
        if self._demand.flat is None:
            FixedRows(self._demand.rows).resume(step, position)
        self._next = position.next


@dataclass
class _Flight:
    """A row of data that is being sampled, or that waits to be trained on."""

    row: int
    version: int
    """Of the weights when it was started: none of its tokens is older."""
    work: asyncio.Task[Group] = field(repr=False)

    @property
    def group(self) -> Group:
        return self.work.result()


class Overlapping:
    """Keeps sampling while the trainer works. `tell` hears of a group's episodes when the group is taken or set aside.

    Use it on one event loop; `close` must be awaited.
    """

    def __init__(
        self,
        runner: GroupSource,
        order: EndlessOrder[Task],
        demand: Demand,
        *,
        max_staleness: int,
        tell: Callable[[Iterable[Group]], None],
    ) -> None:
        if max_staleness < 1:
            raise ValueError(f"max_staleness is {max_staleness}, expected at least 1; with 0 use TurnTaking")
        self._runner = runner
        self._order = order
        self._demand = demand
        self._staleness = max_staleness
        self._tell = tell
        self._gate = runner.gate()
        self._version = 0
        self._next = 0
        self._again: list[int] = []
        """Rows that an earlier process of this run had started."""
        self._flights: dict[int, _Flight] = {}
        self._aside: list[Group] = []
        """Groups that this step set aside."""
        self._dropped = 0
        """Groups set aside since the start of this process: rows beyond those that the steps need."""
        self._last: list[_Flight] = []
        self._base = 0
        """What `next` would be at version 0 of a run that never set anything aside."""
        self._kept = DataPosition(0)

    async def take(self, step: int) -> list[Group]:
        self._aside = []
        while True:
            self._admit()
            self._sort_out(step)
            chosen = self._choose(step)
            if chosen is not None:
                break
            going = [it.work for it in self._flights.values() if not it.work.done()]
            assert going, "what is admitted can always be trained on in time"
            await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
        for flight in chosen:
            del self._flights[flight.row]
        self._last = chosen
        groups = [flight.group for flight in chosen]
        # First: whoever reads why the run stopped is sent to these episodes.
        self._tell(groups)
        self._runner.check([*groups, *self._aside])
        return groups

    def trained(self, step: int) -> None:
        started = tuple(sorted({*self._flights, *self._again}))
        self._kept = DataPosition(self._next, started)

    def weights_are(self, version: int) -> None:
        self._version = version
        self._admit()

    def metrics(self) -> dict[str, float]:
        metrics = {"groups/waiting": float(sum(it.work.done() for it in self._flights.values()))}
        if self._demand.flat is not None:
            metrics["groups/set_aside"] = float(len(self._aside))
        return metrics

    async def close(self) -> None:
        works = [flight.work for flight in self._flights.values()]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        self._flights.clear()

    def position(self, step: int) -> DataPosition:
        return self._kept

    def resume(self, step: int, position: DataPosition) -> None:
        self._version = step
        self._next = position.next
        self._again = sorted(position.pending)
        # Of the rows that were taken, those of complete steps are trained on; the others were set aside or are pending.
        self._base = position.next - len(position.pending) - step * self._demand.rows
        self._kept = position

    def _admit(self) -> None:
        """Start what can be trained on in time."""
        ahead = min(self._version + self._staleness + 1, self._demand.steps) * self._demand.rows
        most = self._base + self._dropped + ahead
        # Rows that are to be started again count as taken. They may be more than there is room for, where the run goes
        # on with smaller steps or a smaller max_staleness.
        room = (ahead - self._version * self._demand.rows) - len(self._flights)
        while self._again and room > 0:
            self._start(self._again.pop(0))
            room -= 1
        while self._next < most:
            self._start(self._next)
            self._next += 1

    def _start(self, row: int) -> None:
        demand = self._demand
        (task,) = self._order.take(row, 1)
        step, number = divmod(row, demand.rows)
        work = asyncio.get_running_loop().create_task(
            self._runner.group(
                task, number, demand.group_size, demand.limits, round_id=f"train-{step + 1}", gate=self._gate
            )
        )
        self._flights[row] = _Flight(row, self._version, work)

    def _sort_out(self, step: int) -> None:
        """Set finished groups aside that aren't wanted, and let others take their place. Raises what ended a group."""
        for flight in [it for it in self._flights.values() if it.work.done()]:
            if not self._demand.wanted(flight.group):
                del self._flights[flight.row]
                self._tell([flight.group])
                self._aside.append(flight.group)
                self._dropped += 1
        if len(self._aside) > self._demand.rows * (self._demand.most_rounds - 1):
            # Groups all of whose episodes failed are among them: that is told first.
            self._runner.check(self._aside)
            raise _nothing_to_learn(step, len(self._aside), len(self._aside))
        self._admit()

    def _choose(self, step: int) -> list[_Flight] | None:
        """The groups to train on now, or None where one more has to finish first."""
        rows = self._demand.rows
        by_age = sorted(self._flights.values(), key=lambda it: (it.version, it.row))
        chosen = [it for it in by_age if it.work.done()][:rows]
        if len(chosen) < rows:
            return None
        taken = {it.row for it in chosen}
        left = [it for it in by_age if it.row not in taken]
        # The group at place n of what is left is trained on in step + 1 + n // rows at the soonest.
        late = any(step + n // rows > it.version + self._staleness for n, it in enumerate(left))
        return None if late else chosen


def staleness_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Age in versions of the sampled tokens, where the weights that are trained have this version."""
    total = count = oldest = 0
    for group in groups:
        for episode in group.scored:
            ages = [version - sampled for sampled in episode.weight_versions if sampled >= 0]
            total, count = total + sum(ages), count + len(ages)
            oldest = max(oldest, *ages, 0) if ages else oldest
    return {"staleness/mean": total / count, "staleness/max": float(oldest)} if count else {}


def _nothing_to_learn(step: int, sampled: int, set_aside: int) -> RunStoppedError:
    return RunStoppedError(
        f"step {step}: of {sampled} groups the rewards of {set_aside} were all equal: there is nothing to learn from",
        hint="Take tasks that are neither too hard nor too easy, a larger group_size or another reward; or turn "
        "algorithm.dynamic_sampling off.",
    )
