"""Rollout that the first of several ranks leads: it alone deals with who samples, and the others get what it gets.

Only one process decides what is sampled, so what depends on time does no harm: groups of several versions, groups that
are cut. The other ranks load no engine and no tools; they take part in the exchange and train on what it brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from toolrl.loop.ranks import Ranks
from toolrl.loop.supply import DataPosition, Supply
from toolrl.protocols import WeightSource
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import RolloutWorkers
from toolrl.types import Group, Task


class LedRollout:
    """A `GroupSource`, and `TakesWeights`, whose `run` all ranks call together with the same arguments."""

    def __init__(self, ranks: Ranks, sampler: RolloutWorkers | None) -> None:
        """`sampler` is that of the first rank; the others have none."""
        self._ranks = ranks
        self._sampler = sampler

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See GroupSource. Where the first rank fails or one is interrupted, all are."""
        work: Coroutine[Any, Any, list[Group]] | None = None
        if self._sampler is not None:
            work = self._sampler.run(tasks, group_size, limits, round_id=round_id, training=training)
        return await self._ranks.from_first(work, f"the groups of {round_id}")

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """See TakesWeights: the first rank's, which are those of all."""
        if self._sampler is not None:
            await self._sampler.update_weights(weights, version)

    # For the supply of the first rank, which alone has one.

    async def group(
        self, task: Task, number: int, group_size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        """See GroupSource."""
        return await self.sampler.group(task, number, group_size, limits, round_id=round_id, gate=gate)

    def gate(self) -> asyncio.Semaphore:
        """See GroupSource."""
        return self.sampler.gate()

    def notify(self, groups: Iterable[Group]) -> None:
        """See GroupSource."""
        self.sampler.notify(groups)

    def check(self, groups: Sequence[Group]) -> None:
        """See GroupSource."""
        self.sampler.check(groups)

    @property
    def sampler(self) -> RolloutWorkers:
        """The first rank's."""
        assert self._sampler is not None, "only the first rank asks"
        return self._sampler


class LedSupply:
    """A `Supply` of all ranks, that of the first rank."""

    def __init__(self, ranks: Ranks, supply: Supply | None) -> None:
        """`supply` is that of the first rank; the others have none."""
        self._ranks = ranks
        self._supply = supply
        self._replayed = 0

    @property
    def replayed(self) -> int:
        return self._replayed

    async def take(self, step: int) -> list[Group]:
        work = self._take(self._supply, step) if self._supply is not None else None
        groups, self._replayed = await self._ranks.from_first(work, f"the groups of step {step}")
        return groups

    def trained(self, step: int) -> None:
        if self._supply is not None:
            self._supply.trained(step)

    def weights_are(self, version: int) -> None:
        if self._supply is not None:
            self._supply.weights_are(version)

    def metrics(self) -> dict[str, float]:
        """The first rank's, which alone tells of them."""
        return self._supply.metrics() if self._supply is not None else {}

    async def close(self) -> None:
        if self._supply is not None:
            await self._supply.close()

    def position(self, step: int) -> DataPosition:
        """Asked on the first rank, which writes it."""
        assert self._supply is not None, "only the first rank asks"
        return self._supply.position(step)

    def resume(self, step: int, position: DataPosition) -> None:
        if self._supply is not None:
            self._supply.resume(step, position)

    @staticmethod
    async def _take(supply: Supply, step: int) -> tuple[list[Group], int]:
        groups = await supply.take(step)
        return groups, supply.replayed
