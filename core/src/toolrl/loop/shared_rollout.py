"""Rollout over several ranks: each samples its share of a round with its own engine, and all get all groups.

The share of rank r are the tasks r, r + ranks, r + 2 · ranks …: whole groups, with the names and seeds that they have
in one process. Groups are exchanged when all shares are done, so that a step's credit, its loss and its metrics are
those of the whole step on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl.loop.ranks import Ranks
from toolrl.rollout.environment import Limits
from toolrl.rollout.runner import Runner
from toolrl.types import Group, Task


class SharedRunner(Runner):
    """A `Runner` whose `run` all ranks call together, with the same arguments. The first one tells of all episodes: of
    its own as they end, of the others' when all are there."""

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
