"""The watch over trainer workers, without Ray: who dies brings all back, who tells an error ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.cluster.line import WorkerLostError
from toolrl.cluster.messages import pack_error
from toolrl.cluster.trainer_messages import Began, Counted, Ended, Output, Place, StepDone, TrainerOrder
from toolrl.cluster.trainers import TrainerGroup
from toolrl.errors import ConfigError, RunStoppedError
from toolrl.loop.ranks import LostRanksError, OtherRankError
from toolrl_testing.clock import run_in_virtual_time

LOST = LostRanksError("rank 1 lost the other ranks")
OTHER = OtherRankError("rank 0 ended the run: it did")


def died() -> Ended:
    return Ended(death="was ended by SIGKILL")


def told(error: Exception) -> Ended:
    return Ended(error=pack_error(error))


class Gone:
    """In a script: the worker itself is gone."""


class Silent:
    """In a script: nothing more is ever said."""


Script = Sequence[Any]
"""What one process of a rank tells, an item a poll."""


class World:
    """Workers whose processes follow scripts: `scripts[generation][rank]`."""

    def __init__(self, *scripts: Sequence[Script]) -> None:
        self.scripts = scripts
        self.orders: list[list[TrainerOrder]] = [[] for _ in scripts]
        self.ended: list[int] = []
        self.killed: list[int] = []
        self.signals: list[tuple[int, int]] = []

    def spawn(self, rank: int) -> Worker:
        return Worker(self, rank)


class Worker:
    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.script: list[Any] = []
        self.gone = False

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.gone:
            raise WorkerLostError("its node is gone")
        return await getattr(self, method)(*arguments)

    async def place(self) -> Place:
        return Place(f"host-{self.rank}", f"10.0.0.{self.rank + 1}", 1000 + self.rank)

    async def start(self, order: TrainerOrder) -> int:
        generation = order.restarts
        self.world.orders[generation].append(order)
        self.script = list(self.world.scripts[generation][self.rank])
        return 100 * generation + self.rank

    async def poll(self, pid: int, seconds: float, silence: float) -> Output:
        assert pid == 100 * (len([it for it in self.world.orders if it]) - 1) + self.rank
        await asyncio.sleep(1.0)
        item = self.script.pop(0) if self.script else Silent
        if item is Gone:
            self.gone = True
            raise WorkerLostError("its node is gone")
        if item is Silent:
            await asyncio.sleep(10_000.0)
        if isinstance(item, Ended):
            return Output(ended=item)
        return Output(out=item) if isinstance(item, bytes) else Output(events=[item])

    async def signal(self, number: int) -> None:
        self.world.signals.append((self.rank, number))
        self.script = [Ended(143)]

    async def last_lines(self) -> list[str]:
        return [f"rank {self.rank} says nothing of interest"]

    def last_words(self) -> list[str]:
        return []

    async def end(self) -> None:
        self.world.ended.append(self.rank)

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        self.gone = True
        self.world.killed.append(self.rank)


ORDER: Any = TrainerOrder(0, 2, None, "/", "/nowhere/run", resume=False, overwrite=False, json=False)  # type: ignore[arg-type]
WELL: list[Script] = [[Began(), Ended(0)], [Began(), Ended(0)]]


def play(world: World, *, order: TrainerOrder = ORDER, restarts: int = 2, **options: Any) -> TrainerGroup:
    """The group, when the run has ended well."""
    group = TrainerGroup(order, world.spawn, 600.0, restarts, write=lambda out, err: None, **options)
    assert run_in_virtual_time(group.run()) == 0
    return group


def test_all_meet_at_the_first_one_and_its_words_are_printed() -> None:
    world, printed = World([[Began(), b"line\n", Ended(0)], [Began(), b"not this\n", Ended(0)]]), []
    group = TrainerGroup(ORDER, world.spawn, 600.0, 2, write=lambda out, err: printed.append(out))
    assert run_in_virtual_time(group.run()) == 0
    assert sorted((it.rank, it.address, it.port) for it in world.orders[0]) == [
        (0, "10.0.0.1", 1000),
        (1, "10.0.0.1", 1000),
    ]
    assert printed == [b"line\n"]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([[Began(), StepDone(1), Silent], [Began(), StepDone(1), died()]], id="dies"),
        pytest.param([[Began(), StepDone(1), died()], [Began(), StepDone(1), Silent]], id="first-dies"),
        pytest.param([[Began(), StepDone(1), told(LOST)], [Began(), StepDone(1), b"", died()]], id="others-tell-first"),
        pytest.param([[Began(), StepDone(1), told(LOST)], [Began(), StepDone(1), Silent]], id="stands-still"),
        pytest.param([[Began(), StepDone(1), Silent], [Began(), StepDone(1), Gone]], id="node-lost"),
        pytest.param([[Began(), StepDone(1), Silent], [Began(), StepDone(1), Ended(0)]], id="ends-alone"),
    ],
)
def test_a_death_brings_all_back_from_the_last_checkpoint(first: Sequence[Script]) -> None:
    world = World(first, WELL)
    group = play(world)
    again = sorted(world.orders[1], key=lambda it: it.rank)
    assert [(it.resume, it.overwrite, it.again, it.reached) for it in again] == [(True, False, True, 1)] * 2
    assert group.order.restarts == 1
    assert sorted([*world.ended, *world.killed[: -group.order.size]]) == [0, 1], "none of the old ones goes on"


def test_a_worker_on_a_lost_node_is_replaced_and_the_other_kept() -> None:
    world = World([[Began(), Silent], [Began(), Gone]], WELL)
    play(world)
    assert world.killed[0] == 1
    assert world.ended == [0]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param([told(ConfigError("no")), told(OTHER)], ConfigError, id="error"),
        pytest.param([told(OTHER), told(ValueError("a bug"))], ValueError, id="of-another-rank"),
        pytest.param([told(RunStoppedError("diverged")), died()], RunStoppedError, id="and-a-death"),
        pytest.param([told(RunStoppedError("diverged")), Silent], RunStoppedError, id="and-silence"),
        pytest.param([told(OTHER), told(OTHER)], OtherRankError, id="only-hearsay"),
    ],
)
def test_what_a_rank_tells_ends_the_run(ends: list[Any], expected: type[Exception]) -> None:
    world = World([[Began(), end] for end in ends])
    group = TrainerGroup(ORDER, world.spawn, 600.0, 2, write=lambda out, err: None)
    with pytest.raises(expected):
        run_in_virtual_time(group.run())
    assert len(world.orders[0]) == 2


def test_too_many_deaths_in_a_row_end_the_run_with_the_last_words() -> None:
    world = World(*([[[Began(), Silent], [Began(), died()]]] * 3))
    group = TrainerGroup(ORDER, world.spawn, 600.0, 2, write=lambda out, err: None)
    with pytest.raises(RunStoppedError, match="died 3 times in a row without a new step") as caught:
        run_in_virtual_time(group.run())
    assert "  | rank 1 says nothing of interest" in str(caught.value)
    assert "cluster.trainer_restarts" in str(caught.value.hint)


def test_a_new_step_makes_up_for_a_death_and_an_old_one_does_not() -> None:
    def dying(step: int) -> Sequence[Script]:
        return [[Began(), StepDone(step), Silent], [Began(), b"", b"", died()]]

    play(World(dying(1), dying(2), dying(3), WELL), restarts=1)
    group = TrainerGroup(ORDER, World(dying(1), dying(1), dying(1), WELL).spawn, 600.0, 1, write=lambda out, err: None)
    with pytest.raises(RunStoppedError):
        run_in_virtual_time(group.run())


def test_a_run_that_was_to_be_deleted_is_deleted_once(tmp_path: Path) -> None:
    order = TrainerOrder(**{**vars_of(ORDER), "overwrite": True})
    early = [[died()], [Silent]]
    late = [[Began(), died()], [Began(), Silent]]
    world = World(early, late, WELL)
    play(world, order=order)
    assert [(it[0].overwrite, it[0].resume) for it in world.orders] == [(True, False), (True, False), (False, True)]


def vars_of(order: TrainerOrder) -> dict[str, Any]:
    return {name: getattr(order, name) for name in order.__dataclass_fields__}


def test_what_was_lost_is_told_to_the_next_first_rank() -> None:
    counted = Counted({"cluster/restarted_trainers": 3.0}, 2)
    world = World(
        [[Began(), StepDone(5), died()], [Began(), Silent]],
        [[Began(), counted, died()], [Began(), Silent]],
        WELL,
    )
    play(world)
    last = world.orders[2][0]
    assert (last.restarts, last.repeated, last.reached) == (2, 2, 5)
    assert last.told == counted.told


def test_who_dies_after_the_first_rank_ended_well_brings_nothing_back() -> None:
    """The first one ends well when all have come to the end, so nothing is left to do."""
    world = World([[Began(), Ended(0)], [Began(), Ended(death="was ended by SIGSEGV")]], WELL)
    assert play(world).order.restarts == 0
    world = World([[Began(), b"", Silent], [Began(), Ended(death="was ended by SIGSEGV")]], WELL)
    assert play(world).order.restarts == 1, "before that it does"


@pytest.mark.parametrize("running", [True, False])
def test_an_interruption_reaches_all_ranks(running: bool) -> None:
    world = World([[*([Began()] if running else []), Silent], [*([Began()] if running else []), Silent]])
    group = TrainerGroup(ORDER, world.spawn, 600.0, 2, write=lambda out, err: None)

    async def interrupted(wait: Callable[[float], Any] = asyncio.sleep) -> None:
        task = asyncio.ensure_future(group.run())
        await wait(0.5 if not running else 1.5)
        for member in group.members if running else []:
            handle: Any = member.handle
            handle.script = []
        group.interrupt()
        await task

    with pytest.raises(asyncio.CancelledError):
        run_in_virtual_time(interrupted())
    assert world.signals == ([(0, 15), (1, 15)] if running else [])


def test_a_death_after_an_interruption_starts_nothing_again() -> None:
    world = World([[Began(), b"", died()], [Began(), b"", Silent]])
    group = TrainerGroup(ORDER, world.spawn, 600.0, 2, write=lambda out, err: None)

    async def interrupted() -> None:
        task = asyncio.ensure_future(group.run())
        await asyncio.sleep(1.5)
        group._interrupted = True
        await task

    with pytest.raises(asyncio.CancelledError):
        run_in_virtual_time(interrupted())
