"""Rollout over several ranks: each samples its share of a round, or the first rank alone samples for all.

`SharedRunner`: the share of rank r are the tasks r, r + ranks, r + 2 · ranks …: whole groups, with the names and seeds
that they have in one process. Groups are exchanged when all shares are done, so that a step's credit, its loss and its
metrics are those of the whole step on every rank.

`Rank0Rollout` and `Rank0Batches`: the first rank uses the rollout workers, and the others receive its groups. Only one
process decides what is sampled, so groups of several versions and cut groups do no harm. The other ranks load no
engine and no tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from toolrl.loop.ranks import Ranks
from toolrl.protocols import WeightSource
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.source import RolloutWorkers
from toolrl.types import Group, Task
from toolrl_plugin_torch.loop.batches import BatchSource, DataPosition


class SharedRunner(Runner):
    """A `Runner` whose `run` all ranks call together, with the same arguments. The first one notifies observers: of
    its own episodes as they end, of the others' when all are there."""

    def __init__(self, ranks: Ranks, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ranks = ranks

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """As `Runner.run`. Where a rank fails or is interrupted, all are."""
        ranks = self._ranks
        shares = [range(rank, len(tasks), ranks.size) for rank in range(ranks.size)]
        mine = self.sample(tasks, shares[ranks.rank], group_size, limits, round_id=round_id, training=training)
        parts = await ranks.all_of(mine, f"the groups of {round_id}")
        by_place = {
            place: group
            for share, part in zip(shares, parts, strict=True)
            for place, group in zip(share, part, strict=True)
        }
        if ranks.first:
            self.notify(group for rank, part in enumerate(parts) if rank for group in part)
        groups = [by_place[place] for place in range(len(tasks))]
        ranks.by_first(lambda: self.check(groups), f"the check of {round_id}")
        return groups


class Rank0Rollout:
    """`SamplesRounds` and `TakesWeights`: all ranks call `run` together with the same arguments."""

    def __init__(self, ranks: Ranks, sampler: RolloutWorkers | None) -> None:
        """`sampler` is that of the first rank; the others have none."""
        self._ranks = ranks
        self.sampler = sampler

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See SamplesRounds. Where the first rank fails or one is interrupted, all are."""
        work: Coroutine[Any, Any, list[Group]] | None = None
        if self.sampler is not None:
            work = self.sampler.run(tasks, group_size, limits, round_id=round_id, training=training)
        return await self._ranks.from_first(work, f"the groups of {round_id}")

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """See TakesWeights: the first rank hands over the weights of all."""
        if self.sampler is None:
            await asyncio.to_thread(weights.follow)
            return
        weights.lead()
        await self.sampler.update_weights(weights, version)
        weights.release()


class Rank0Batches:
    """A `BatchSource` of all ranks: that of the first rank."""

    def __init__(self, ranks: Ranks, source: BatchSource | None) -> None:
        """`source` is that of the first rank; the others have none."""
        self._ranks = ranks
        self._source = source
        self._replayed = 0

    @property
    def replayed(self) -> int:
        return self._replayed

    async def take(self, step: int) -> list[Group]:
        work = self._take(self._source, step) if self._source is not None else None
        groups, self._replayed = await self._ranks.from_first(work, f"the groups of step {step}")
        return groups

    def trained(self, step: int) -> None:
        if self._source is not None:
            self._source.trained(step)

    def weights_updated(self, version: int) -> None:
        if self._source is not None:
            self._source.weights_updated(version)

    def metrics(self) -> dict[str, float]:
        """The first rank's; none on the others."""
        return self._source.metrics() if self._source is not None else {}

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()

    def position(self, step: int) -> DataPosition:
        """For the first rank, which writes checkpoints."""
        assert self._source is not None, "the first rank has it"
        return self._source.position(step)

    def resume(self, step: int, position: DataPosition) -> None:
        if self._source is not None:
            self._source.resume(step, position)

    @staticmethod
    async def _take(source: BatchSource, step: int) -> tuple[list[Group], int]:
        groups = await source.take(step)
        return groups, source.replayed
