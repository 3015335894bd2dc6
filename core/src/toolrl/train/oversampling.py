"""Taking turns without waiting for the slowest: more groups are started than a step needs, and the last ones are cut.

A step starts `factor` times its groups and ends as soon as it has enough whole ones. What still runs is cancelled, its
tools are released, and its rows of data come first in the next step, sampled anew. A row that was cut once isn't cut
again: the step waits for it. So no row is lost, and a task whose episodes are always slow is trained on as often as any
other. What is lost are the long episodes themselves: a cut row's next sample needn't be as slow, so what is trained on
is quicker, and mostly shorter, than what the policy says. Where that matters, `toolrl.train.overlap` cuts nothing.

Groups that are whole but not needed are cut too: in the next step their tokens would be of an older policy.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from toolrl.errors import CheckpointError
from toolrl.protocols import HoldsStill
from toolrl.rollout.source import GroupSource, TakesWeights
from toolrl.train.data import EndlessOrder
from toolrl.train.supply import DataPosition, Demand, FixedRows, nothing_to_learn
from toolrl.types import Group, Task

_log = logging.getLogger(__name__)
_CLEANUP = 1.0
"""Seconds that a step waits for tools of cut episodes to be released; they go on in the background then."""
_TURNS = 32
"""Of the event loop: more than it takes until a cancelled group has taken its requests back from the engine."""


@dataclass
class _Round:
    """A step's rows: those in flight and those that are whole."""

    going: dict[int, asyncio.Task[Group]] = field(default_factory=dict)
    whole: dict[int, Group] = field(default_factory=dict)
    aside: list[Group] = field(default_factory=list)
    taken: int = 0
    """New rows of data."""
    started: int = 0
    """Rows, those that had been cut counted in."""


class OverSampling:
    """Samples before each update, somewhat more than it needs. `tell` hears of a group's episodes when the group is
    taken or set aside; `engine` is the runner's.

    Use it on one event loop; `close` must be awaited.
    """

    replayed = 0

    def __init__(
        self,
        runner: GroupSource,
        order: EndlessOrder[Task],
        demand: Demand,
        *,
        factor: float,
        engine: TakesWeights,
        tell: Callable[[Iterable[Group]], None],
    ) -> None:
        self._runner = runner
        self._engine = engine
        self._gate = runner.gate()
        self._order = order
        self._demand = demand
        # Rounded first: 100 times 1.1 is a little more than 110.
        self._at_once = math.ceil(round(demand.rows * factor, 6))
        self._tell = tell
        self._next = 0
        self._owed: tuple[int, ...] = ()
        """Rows that were cut and are sampled first."""
        self._round = _Round()
        self._cut: tuple[int, ...] = ()
        """Of this step."""
        self._ending: set[asyncio.Task[Group]] = set()
        """Cut groups whose tools aren't released yet."""

    async def take(self, step: int) -> list[Group]:
        self._round = now = _Round()
        # More than a step's rows are owed only where the run goes on with smaller steps.
        owed = self._owed[: self._demand.rows]
        try:
            self._start(step)
            while not self._enough(owed):
                if not now.going:
                    # Groups all of whose episodes failed are among them: that is told first.
                    self._runner.check(now.aside)
                    raise nothing_to_learn(step, now.started, len(now.aside))
                await asyncio.wait(now.going.values(), return_when=asyncio.FIRST_COMPLETED)
                self._sort_out()
                self._start(step)
            chosen = self._chosen(owed)
        finally:
            await self._cut_off()
        self._cut = tuple(sorted({*now.going, *now.whole, *self._owed[now.started :]} - set(chosen)))
        groups = [now.whole[row] for row in chosen]
        # First: whoever reads why the run stopped is sent to these episodes.
        self._tell(groups)
        self._runner.check([*groups, *now.aside])
        return groups

    def trained(self, step: int) -> None:
        self._next += self._round.taken
        self._owed = self._cut
        self._round.taken = 0

    def weights_are(self, version: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        metrics = {"groups/cut": float(len(self._cut))}
        if self._demand.flat is not None:
            metrics["groups/set_aside"] = float(len(self._round.aside))
        return metrics

    async def close(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)

    def position(self, step: int) -> DataPosition:
        return DataPosition(self._next, self._owed)

    def resume(self, step: int, position: DataPosition) -> None:
        if position.buffer:
            raise CheckpointError(
                f"{len(position.buffer)} groups waited when it was written, and rollout and training now take turns",
                hint="Resume with the rollout.max_staleness that the run began with.",
            )
        if self._demand.flat is None:
            FixedRows(self._demand.rows).resume(step, DataPosition(position.next - len(position.pending)))
        self._next = position.next
        self._owed = tuple(sorted(position.pending))

    def _start(self, step: int) -> None:
        """Fill up to as many rows as are sampled at once, those that were cut first."""
        now, demand = self._round, self._demand
        while len(now.going) + len(now.whole) < self._at_once and now.started < self._at_once * demand.most_rounds:
            if now.started < len(self._owed):
                row = self._owed[now.started]
            else:
                row = self._next + now.taken
                now.taken += 1
            (task,) = self._order.take(row, 1)
            group = self._runner.group(
                task, now.started, demand.group_size, demand.limits, round_id=f"train-{step}", gate=self._gate
            )
            now.going[row] = asyncio.get_running_loop().create_task(group)
            now.started += 1

    def _sort_out(self) -> None:
        """Gather what is whole, and set aside what isn't wanted. Raises what ended a group."""
        now = self._round
        for row, work in [(row, work) for row, work in now.going.items() if work.done()]:
            del now.going[row]
            group = work.result()
            if self._demand.wanted(group):
                now.whole[row] = group
            else:
                self._tell([group])
                now.aside.append(group)

    def _enough(self, owed: tuple[int, ...]) -> bool:
        """Whether the step can go on: it waits for rows that were cut before."""
        now = self._round
        return len(now.whole) >= self._demand.rows and not any(row in now.going for row in owed)

    def _chosen(self, owed: tuple[int, ...]) -> list[int]:
        first = [row for row in owed if row in self._round.whole]
        others = [row for row in sorted(self._round.whole) if row not in first]
        return sorted([*first, *others[: self._demand.rows - len(first)]])

    async def _cut_off(self) -> None:
        """Cancel what still runs. Afterwards the engine does nothing any more; tools may still be released."""
        works = set(self._round.going.values())
        if not works:
            return
        for work in works:
            work.cancel()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._ending |= works
        for work in works:
            work.add_done_callback(self._ended)
        await asyncio.wait(works, timeout=_CLEANUP)
        if isinstance(self._engine, HoldsStill):
            # It may read the trainer's own weights: wait until it has let go of what was cancelled.
            async with self._engine.hold():
                pass

    def _ended(self, work: asyncio.Task[Group]) -> None:
        self._ending.discard(work)
        if not work.cancelled() and work.exception() is not None:
            _log.warning("a group that was cut ended with %r", work.exception())
