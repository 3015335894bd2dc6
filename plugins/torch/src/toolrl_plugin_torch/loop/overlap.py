"""Sampling while the trainer works, with a bound on the age of every token.

Rows of data are admitted in order, and never more than can be trained on before they are more than `max_staleness`
versions old; half-done episodes go on after an update, each token with its own version. Groups are taken as they are
finished, the oldest first, but never so that an older one would miss its last step: then the step waits for it. So no
group is thrown away for being slow, which would favour what is quick (the bound on what is started is AReaL's, arXiv
2505.24298, section 5.1).

With `replay` a part of each step are groups that were trained on before and are still young enough: those that were
used least, and of these the oldest. Where there are fewer, new ones take their place.

A checkpoint keeps the rows in flight, and of groups that are finished, waiting or to be replayed, also their episodes,
so that nothing is sampled twice. Groups with images are sampled again, and so are those in whose row the data has
another task by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.loop.data import EndlessOrder
from toolrl.rollouts.source import GroupSource
from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.types import Group, Task
from toolrl_plugin_torch.loop.batches import DataPosition, Demand, nothing_to_learn
from toolrl_plugin_torch.loop.difficulty import DifficultyPools


@dataclass
class _Sampled:
    """A row of data that is being sampled, that waits to be trained on, or that can be trained on again."""

    row: int
    version: int
    """Of the weights when it was started: none of its tokens is older."""
    work: asyncio.Future[Group] = field(repr=False)
    uses: int = 0
    """Steps that trained on it."""

    @property
    def group(self) -> Group:
        return self.work.result()


class OverlappingBatches:
    """A `BatchSource` that keeps sampling while the trainer works. `replay` is the share of a step's groups that were
    trained on before. Observers are notified of a group when it is first taken or set aside.

    Use it on one event loop; `close` must be awaited.
    """

    def __init__(
        self,
        runner: GroupSource,
        order: EndlessOrder[Task],
        demand: Demand,
        *,
        max_staleness: int,
        replay: float = 0.0,
        pools: DifficultyPools | None = None,
    ) -> None:
        self._runner = runner
        self._order = order
        self._demand = demand
        self._pools = pools or DifficultyPools(order)
        self._staleness = max_staleness
        self._gate = runner.gate()
        # Rounded first: 100 times 0.29 is a little less than 29.
        self._replays = min(int(round(demand.rows * replay, 6)), demand.rows - 1)
        """Of a step, at most."""
        self._version = 0
        self._next = 0
        self._again: list[int] = []
        """Rows that an earlier process of this run had started."""
        self._flights: dict[int, _Sampled] = {}
        self._used: dict[int, _Sampled] = {}
        self._aside: list[Group] = []
        """Groups that this step set aside."""
        self._taken: tuple[list[_Sampled], list[_Sampled]] = [], []
        """New ones and replayed ones of this step."""
        self._kept: tuple[DataPosition, Sequence[_Sampled]] = DataPosition(0), ()
        """What a checkpoint holds, as it was after a step: with finished groups, and those to be replayed."""

    @property
    def replayed(self) -> int:
        """How many of the groups that were taken last were trained on before: they stand at the end."""
        return len(self._taken[1])

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
        again = self._replayable()[: self._demand.rows - len(chosen)]
        for flight in chosen:
            del self._flights[flight.row]
        self._taken = chosen, again
        groups = [flight.group for flight in chosen]
        # First: the reason that the run stopped for points to these episodes.
        self._runner.notify(groups)
        self._pools.judge((flight.row, flight.group) for flight in chosen)
        self._runner.check([*groups, *self._aside])
        return [*groups, *(it.group for it in again)]

    def trained(self, step: int) -> None:
        new, again = self._taken
        for it in (*new, *again):
            it.uses += 1
        if self._replays:
            self._used |= {it.row: it for it in new}
        # The next step trains version `step`: what is too old for it is of no use any more.
        self._used = {row: it for row, it in self._used.items() if step - it.version <= self._staleness}
        started = tuple(sorted({*self._flights, *self._again}))
        waiting = [it for it in self._flights.values() if _is_whole(it.work)]
        position = DataPosition(self._next, started, pass_rates=self._pools.kept())
        self._kept = position, [replace(it) for it in (*waiting, *self._used.values())]

    def weights_updated(self, version: int) -> None:
        self._version = version
        self._admit()

    def metrics(self) -> dict[str, float]:
        metrics = {"groups/waiting": float(sum(it.work.done() for it in self._flights.values()))}
        if self._demand.flat is not None:
            metrics["groups/set_aside"] = float(len(self._aside))
        if self._replays:
            metrics["groups/replayed"] = float(self.replayed)
        return {**metrics, **self._pools.metrics()}

    async def close(self) -> None:
        works = [flight.work for flight in self._flights.values()]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        self._flights.clear()

    def position(self, step: int) -> DataPosition:
        """May be called from another thread than the loop's."""
        position, kept = self._kept
        records = [record for it in kept if (record := _to_record(it)) is not None]
        return replace(position, buffer=tuple(records))

    def resume(self, step: int, position: DataPosition) -> None:
        self._version = step
        self._next = position.next
        self._pools.resume(position.pass_rates)
        self._again = sorted(position.pending)
        found = [_from_record(record, self._order) for record in position.buffer]
        for it in sorted((it for it in found if it is not None), key=lambda it: (it.version, it.row)):
            if len(it.group.episodes) != self._demand.group_size or step - it.version > self._staleness:
                continue
            if it.uses and self._replays:
                self._used[it.row] = it
            # What waited is trained on as early as ever; with smaller steps some would be too old by then.
            elif it.row in self._again and step + len(self._flights) // self._least <= it.version + self._staleness:
                self._again.remove(it.row)
                self._flights[it.row] = replace(it, uses=0)
        self._kept = (
            replace(position, buffer=()),
            [replace(it) for it in (*self._flights.values(), *self._used.values())],
        )

    @property
    def _least(self) -> int:
        """New groups that every step takes."""
        return self._demand.rows - self._replays

    def _admit(self) -> None:
        """Start what can be trained on in time, and at least what the next step needs."""
        demand = self._demand
        steps = min(self._version + self._staleness + 1, demand.steps) - self._version
        needed = demand.rows - len(self._replayable()) if steps > 0 else 0
        for _ in range(max(steps * self._least, needed) - len(self._flights)):
            if self._again:
                self._start(self._again.pop(0))
            else:
                row = self._pools.next(self._next)
                self._start(row)
                self._next = row + 1

    def _start(self, row: int) -> None:
        demand = self._demand
        (task,) = self._order.take(row, 1)
        step, number = divmod(row, demand.rows)
        work = asyncio.get_running_loop().create_task(
            self._runner.group(
                task, number, demand.group_size, demand.limits, round_id=f"train-{step + 1}", gate=self._gate
            )
        )
        self._flights[row] = _Sampled(row, self._version, work)

    def _sort_out(self, step: int) -> None:
        """Set finished groups aside that aren't wanted, and let others take their place. Raises what ended a group."""
        for flight in [it for it in self._flights.values() if it.work.done()]:
            if not self._demand.wanted(flight.group):
                del self._flights[flight.row]
                self._runner.notify([flight.group])
                self._pools.judge([(flight.row, flight.group)])
                self._aside.append(flight.group)
        if len(self._aside) > self._demand.rows * (self._demand.most_rounds - 1):
            # Groups all of whose episodes failed are among them: this error comes first.
            self._runner.check(self._aside)
            raise nothing_to_learn(step, len(self._aside), len(self._aside))
        self._admit()

    def _choose(self, step: int) -> list[_Sampled] | None:
        """The new groups to train on now, or None where one more has to finish first."""
        new = self._demand.rows - len(self._replayable())
        by_age = sorted(self._flights.values(), key=lambda it: (it.version, it.row))
        chosen = [it for it in by_age if it.work.done()][:new]
        if len(chosen) < new:
            return None
        taken = {it.row for it in chosen}
        left = [it for it in by_age if it.row not in taken]
        # The group at place n of what is left is trained on in step + 1 + n // least at the soonest.
        late = any(step + n // self._least > it.version + self._staleness for n, it in enumerate(left))
        return None if late else chosen

    def _replayable(self) -> list[_Sampled]:
        """What the next step trains on again: all of it is young enough, see `trained`."""
        return sorted(self._used.values(), key=lambda it: (it.uses, it.version, it.row))[: self._replays]


def _is_whole(work: asyncio.Future[Group]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None


def _to_record(it: _Sampled) -> Mapping[str, Any] | None:
    """A group as JSON values, without its task, which the data set gives again. None for one with images, routes or
    sampling masks: tensors are no JSON."""
    parts = [part for episode in it.group.episodes for part in episode.trajectories]
    if any(part.media or part.routes or part.sampling_masks for part in parts):
        return None
    episodes = [episode_to_json(replace(episode, task=Task(episode.task.id, ()))) for episode in it.group.episodes]
    return {"row": it.row, "version": it.version, "uses": it.uses, "group": it.group.id, "episodes": episodes}


def _from_record(record: Mapping[str, Any], order: EndlessOrder[Task]) -> _Sampled | None:
    """The group again. None where the data has another task in this row by now."""
    (task,) = order.take(record["row"], 1)
    found = [episode_from_json(episode) for episode in record["episodes"]]
    if any(episode.task.id != task.id for episode in found):
        return None
    episodes = tuple(replace(episode, task=task) for episode in found)
    work: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
    work.set_result(Group(record["group"], task, episodes))
    return _Sampled(record["row"], record["version"], work, record["uses"])
