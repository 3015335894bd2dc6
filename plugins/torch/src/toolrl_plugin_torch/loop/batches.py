"""Batch sources: they sample a step's groups before each update, or beside training.

`SynchronousBatches` samples a step's groups, and nothing while they are trained on: every token is of the version that
is trained. `toolrl_plugin_torch.loop.overlap` samples while the trainer works.

With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) flat groups, which carry no signal, are set aside, and
the next rows of data take their place.

A batch source also knows how far the data has been used; a checkpoint keeps it. A resumed run starts the rows again
that were in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.loop.data import EndlessOrder
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.source import GroupSource
from toolrl.types import Group, Task
from toolrl_plugin_torch.loop.difficulty import DifficultyPools


@dataclass(frozen=True)
class DataPosition:
    """How far a run has used its data."""

    next: int
    """Rows of the endless sequence that were taken: the next to take."""
    pending: tuple[int, ...] = ()
    """Of those the ones that were not trained on yet."""
    buffer: tuple[Mapping[str, Any], ...] = ()
    """Finished groups that can still be trained on, as JSON values: of pending rows, and to be trained on again."""
    pass_rates: Mapping[int, float] = field(default_factory=dict)
    """Of the tasks that algorithm.difficulty has set aside, by their row in the data set."""


class KeepsPosition(Protocol):
    """The part of a batch source that a checkpoint needs: how far the data has been used."""

    def position(self, step: int) -> DataPosition:
        """After so many complete steps."""
        ...

    def resume(self, step: int, position: DataPosition) -> None:
        """Go on from there. Raises CheckpointError where the config doesn't fit the position."""
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
                hint="Resume with the batch size, `difficulty` and `dynamic_sampling` that the run began with.",
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
    """With dynamic sampling: whether a group carries no signal and is set aside."""
    most_rounds: int = 8
    """With `flat`: a step may sample up to so many times its rows before the run stops."""

    def wanted(self, group: Group) -> bool:
        """Whether a group may be trained on."""
        return self.flat is None or not self.flat(group)


class BatchSource(KeepsPosition, Protocol):
    """Gives each step its groups."""

    async def take(self, step: int) -> list[Group]:
        """The groups of this step, counted from 1; it trains the weights of version step − 1."""
        ...

    def trained(self, step: int) -> None:
        """The step's update is complete."""
        ...

    def weights_updated(self, version: int) -> None:
        """The engine samples from these weights now."""
        ...

    @property
    def replayed(self) -> int:
        """How many of the groups that were taken last were trained on before: they stand at the end."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the groups that were taken last."""
        ...

    async def close(self) -> None:
        """Sample nothing more."""
        ...


class SynchronousBatches:
    """Samples before each update, and nothing during it."""

    replayed = 0

    def __init__(
        self,
        runner: GroupSource,
        order: EndlessOrder[Task],
        demand: Demand,
        pools: DifficultyPools | None = None,
    ) -> None:
        self._runner = runner
        self._order = order
        self._demand = demand
        self._pools = pools or DifficultyPools(order)
        self._next = 0
        self._taken: list[tuple[int, Group]] = []
        """The groups of this step with their positions, those that were set aside too."""
        self._set_aside = 0

    async def take(self, step: int) -> list[Group]:
        demand = self._demand
        groups: list[Group] = []
        self._taken, self._set_aside = [], 0
        again = 0
        while (missing := demand.rows - len(groups)) and len(self._taken) + missing <= demand.rows * demand.most_rounds:
            places = self._places(missing)
            tasks = [task for place in places for task in self._order.take(place, 1)]
            round_id = f"train-{step}.{again}" if again else f"train-{step}"
            found = await self._runner.run(tasks, demand.group_size, demand.limits, round_id=round_id)
            self._taken += zip(places, found, strict=True)
            wanted = [group for group in found if demand.wanted(group)]
            self._set_aside += len(found) - len(wanted)
            groups += wanted
            again += 1
        if missing:
            raise nothing_to_learn(step, len(self._taken), self._set_aside)
        return groups

    def _places(self, count: int) -> list[int]:
        """The next positions to sample, behind those that this step has taken."""
        places: list[int] = []
        place = self._after()
        for _ in range(count):
            places.append(self._pools.next(place))
            place = places[-1] + 1
        return places

    def _after(self) -> int:
        return self._taken[-1][0] + 1 if self._taken else self._next

    def trained(self, step: int) -> None:
        self._next = self._after()
        self._pools.judge(self._taken)
        self._taken = []

    def weights_updated(self, version: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        aside = {"groups/set_aside": float(self._set_aside)} if self._demand.flat else {}
        return {**aside, **self._pools.metrics()}

    async def close(self) -> None:
        pass

    def position(self, step: int) -> DataPosition:
        return DataPosition(self._next, pass_rates=self._pools.kept())

    def resume(self, step: int, position: DataPosition) -> None:
        if position.pending or position.buffer:
            held = f"{len(position.pending)} in-flight rows" if position.pending else "groups to be replayed"
            raise CheckpointError(
                f"the checkpoint has {held} (rollout.max_staleness > 0), and the config now has max_staleness: 0",
                hint="Resume with the rollout.max_staleness that the run began with; where that was 0, with 1.",
            )
        if self._demand.flat is None and self._pools.settings is None and not position.pass_rates:
            FixedRows(self._demand.rows).resume(step, position)
        self._pools.resume(position.pass_rates)
        self._next = position.next


def staleness_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Age in versions of the sampled tokens, where the weights that are trained have this version."""
    total = count = oldest = 0
    for group in groups:
        for episode in group.scored:
            ages = [version - sampled for it in episode.trajectories for sampled in it.weight_versions if sampled >= 0]
            total, count = total + sum(ages), count + len(ages)
            oldest = max(oldest, *ages, 0) if ages else oldest
    return {"staleness/mean": total / count, "staleness/max": float(oldest)} if count else {}


def nothing_to_learn(step: int, sampled: int, set_aside: int) -> RunStoppedError:
    """What ends a run whose step can't be filled."""
    return RunStoppedError(
        f"step {step}: of {sampled} groups {set_aside} were set aside, as all episodes had the same "
        "algorithm.filter_metric: there is nothing to learn from",
        hint="Take tasks that are neither too hard nor too easy, a larger group_size or another reward; or turn "
        "algorithm.dynamic_sampling off.",
    )
