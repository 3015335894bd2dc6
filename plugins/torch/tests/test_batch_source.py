"""Where groups come from: nothing lost, nothing twice, nothing older than allowed, whatever finishes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.loop.batches import DataPosition, Demand, FixedRows, SynchronousBatches, staleness_metrics
from toolrl.loop.data import EndlessOrder
from toolrl.loop.overlap import OverlappingBatches
from toolrl.rollout.environment import Limits
from toolrl.types import Group, RewardEntry, Task
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.credit import is_flat
from toolrl_testing.fakes import make_episode, make_task

LIMITS = Limits(max_turn_tokens=20, max_episode_tokens=200)
TASKS = [make_task(id=f"t{number}") for number in range(1000)]


def demand(*, dynamic: bool = False, **changes: Any) -> Demand:
    flat = partial(is_flat, algorithm=AlgorithmConfig()) if dynamic else None
    return Demand(**{"steps": 6, "rows": 2, "group_size": 2, "limits": LIMITS, "flat": flat, **changes})


def make_group(task: Task, name: str, *, flat: bool = False) -> Group:
    episodes = tuple(
        make_episode("x", task=task, index=index, rewards=(RewardEntry(None, "reward:r", float(index and not flat)),))
        for index in range(2)
    )
    return Group(name, task, episodes)


class Rows:
    """A runner that samples nothing: `hold(row)` is awaited before a row's group is there."""

    def __init__(self, hold: Callable[[int], Awaitable[None]] | None = None, flat: Iterable[int] = ()) -> None:
        self.hold = hold
        self.flat = set(flat)
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.told: list[str] = []
        self.names: list[str] = []

    async def run(self, tasks: Sequence[Task], size: int, limits: Limits, *, round_id: str) -> list[Group]:
        self.names.append(round_id)
        return [await self.group(task, 0, size, limits, round_id=round_id, gate=self.gate()) for task in tasks]

    async def group(
        self, task: Task, number: int, size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        row = int(task.id[1:])
        self.started.append(row)
        try:
            if self.hold is not None:
                await self.hold(row)
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        return make_group(task, f"{round_id}/{number}/{task.id}", flat=row in self.flat)

    def gate(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(1000)

    def check(self, groups: Sequence[Group]) -> None:
        pass

    def notify(self, groups: Iterable[Group]) -> None:
        self.told += [group.task.id for group in groups]


def order() -> EndlessOrder[Task]:
    return EndlessOrder(TASKS, seed=0, shuffle=False)


def rows_of(groups: Sequence[Group]) -> list[int]:
    return [int(group.task.id[1:]) for group in groups]


def overlapping(runner: Rows, staleness: int = 2, **changes: Any) -> OverlappingBatches:
    return OverlappingBatches(runner, order(), demand(**changes), max_staleness=staleness)  # type: ignore[arg-type]


def turns(runner: Rows, **changes: Any) -> SynchronousBatches:
    return SynchronousBatches(runner, order(), demand(**changes))  # type: ignore[arg-type]


async def step_of(supply: OverlappingBatches | SynchronousBatches, step: int) -> list[int]:
    """Take a step's groups, train on them and hand the weights over."""
    rows = rows_of(await supply.take(step))
    supply.trained(step)
    supply.weights_updated(step)
    return rows


def in_flight(supply: OverlappingBatches, step: int) -> DataPosition:
    """The position without finished groups, as where these hold images; test_replay.py has those that are kept."""
    return replace(supply.position(step), buffer=())


# Turns.


def test_each_step_takes_the_next_rows() -> None:
    async def main() -> None:
        supply = turns(Rows())
        assert [await step_of(supply, step) for step in (1, 2)] == [[0, 1], [2, 3]]
        assert supply.position(2) == DataPosition(4)
        assert supply.metrics() == {}

    asyncio.run(main())


def test_rows_of_a_step_that_was_not_trained_on_are_taken_again() -> None:
    async def main() -> None:
        supply = turns(Rows())
        await step_of(supply, 1)
        await supply.take(2)
        assert supply.position(1) == DataPosition(2)

    asyncio.run(main())


def test_rows_that_a_checkpoint_left_in_flight_need_a_supply_that_overlaps() -> None:
    async def main() -> None:
        position = DataPosition(5, pending=(1, 3))
        with pytest.raises(CheckpointError, match="2 in-flight rows") as refused:
            turns(Rows()).resume(2, position)
        assert "rollout.max_staleness" in str(refused.value.hint)
        supply = overlapping(Rows(), 1)
        supply.resume(2, position)
        assert await step_of(supply, 3) == [1, 3]
        await supply.close()

    asyncio.run(main())


def test_flat_groups_are_set_aside_and_others_sampled() -> None:
    async def main() -> None:
        runner = Rows(flat=[0, 1, 3])
        supply = turns(runner, dynamic=True)
        assert await step_of(supply, 1) == [2, 4]
        assert runner.names == ["train-1", "train-1.1", "train-1.2"]
        assert supply.metrics() == {"groups/set_aside": 3.0}
        assert supply.position(1) == DataPosition(5)
        assert await step_of(supply, 2) == [5, 6]

        again = turns(Rows(), dynamic=True)
        again.resume(1, DataPosition(5))
        assert await step_of(again, 2) == [5, 6]

    asyncio.run(main())


def test_where_everything_is_flat_the_run_stops() -> None:
    with pytest.raises(RunStoppedError, match="step 1: of 16 groups 16 were set aside"):
        asyncio.run(turns(Rows(flat=range(100)), dynamic=True).take(1))


@pytest.mark.parametrize("position", [DataPosition(5), DataPosition(4, (3,))])
def test_another_batch_size_and_rows_in_flight_are_refused(position: DataPosition) -> None:
    with pytest.raises(CheckpointError, match="rows"):
        turns(Rows()).resume(2, position)
    with pytest.raises(CheckpointError, match="groups to be replayed") as caught:
        turns(Rows()).resume(2, DataPosition(3, (), ({"row": 1},)))
    assert "rollout.max_staleness" in str(caught.value.hint), "a run that replays takes fewer rows a step"
    with pytest.raises(CheckpointError, match="5 rows of data were taken in 2 steps, and the config now takes 2"):
        FixedRows(2).resume(2, DataPosition(5))


# Overlapping.


def test_it_starts_no_more_than_can_be_trained_on_in_time() -> None:
    async def main() -> None:
        runner = Rows()
        supply = overlapping(runner)
        assert await step_of(supply, 1) == [0, 1]
        assert runner.started == list(range(6)), "versions 0 to 2 can train on what is sampled now"
        assert await step_of(supply, 2) == [2, 3]
        await asyncio.sleep(0)
        assert runner.started == list(range(10))
        for step in range(3, 7):
            await step_of(supply, step)
        assert runner.started == list(range(12)), "there are six steps"
        await supply.close()

    asyncio.run(main())


def test_a_slow_group_is_overtaken_until_its_last_step() -> None:
    async def main() -> None:
        slow = asyncio.Event()

        async def hold(row: int) -> None:
            if row == 0:
                await slow.wait()

        runner = Rows(hold)
        supply = overlapping(runner)
        assert await step_of(supply, 1) == [1, 2]
        assert await step_of(supply, 2) == [3, 4]
        assert in_flight(supply, 2) == DataPosition(8, (0, 5, 6, 7))
        third = asyncio.create_task(step_of(supply, 3))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not third.done(), "at step 4 it would be three versions old"
        slow.set()
        assert await third == [0, 5]
        await supply.close()

    asyncio.run(main())


def test_episodes_are_told_of_when_their_group_is_taken() -> None:
    async def main() -> None:
        runner = Rows(flat=[1])
        supply = overlapping(runner, dynamic=True)
        await supply.take(1)
        assert sorted(runner.told) == ["t0", "t1", "t2"]
        assert supply.metrics()["groups/set_aside"] == 1.0
        await supply.close()

    asyncio.run(main())


def test_closing_cancels_what_is_in_flight() -> None:
    async def main() -> None:
        async def hold(row: int) -> None:
            if row > 1:
                await asyncio.Event().wait()

        runner = Rows(hold)
        supply = overlapping(runner)
        await step_of(supply, 1)
        await asyncio.sleep(0)
        await supply.close()
        assert sorted(runner.cancelled) == list(range(2, 8))

    asyncio.run(main())


def test_what_ends_a_group_ends_the_step() -> None:
    async def main() -> None:
        async def hold(row: int) -> None:
            raise ValueError(f"row {row}")

        supply = overlapping(Rows(hold))
        with pytest.raises(ValueError, match="row"):
            await supply.take(1)
        await supply.close()

    asyncio.run(main())


def test_where_everything_in_flight_is_flat_the_run_stops() -> None:
    async def main() -> None:
        supply = overlapping(Rows(flat=range(1000)), dynamic=True)
        with pytest.raises(RunStoppedError, match="nothing to learn"):
            await supply.take(1)
        await supply.close()

    asyncio.run(main())


def test_groups_that_are_set_aside_count_in_the_rate_of_failures() -> None:
    async def main() -> None:
        checked: list[int] = []

        class Checks(Rows):
            def check(self, groups: Sequence[Group]) -> None:
                checked.append(len(groups))

        supply = overlapping(Checks(flat=[1]), dynamic=True)
        await supply.take(1)
        await supply.close()
        assert checked == [3]

        class Dead(Rows):
            def check(self, groups: Sequence[Group]) -> None:
                raise RunStoppedError("the engine is dead")

        supply = overlapping(Dead(flat=range(1000)), dynamic=True)
        with pytest.raises(RunStoppedError, match="the engine is dead"):
            await supply.take(1)
        await supply.close()

        dead = Dead()
        supply = overlapping(dead)
        with pytest.raises(RunStoppedError, match="the engine is dead"):
            await supply.take(1)
        await supply.close()
        assert dead.told == ["t0", "t1"], "the episodes that say why are kept"

    asyncio.run(main())


@pytest.mark.parametrize(("staleness", "rows"), [(1, 4), (3, 1), (1, 2), (3, 4)])
def test_a_run_goes_on_with_smaller_steps_or_less_staleness(staleness: int, rows: int) -> None:
    """More rows are pending than may be in flight now."""

    async def main() -> None:
        before = overlapping(Rows(), 3, rows=4)
        await step_of(before, 1)
        position = in_flight(before, 1)
        await before.close()
        assert position == DataPosition(16, tuple(range(4, 16)))

        runner = Rows()
        supply = overlapping(runner, staleness, rows=rows)
        supply.resume(1, position)
        trained: list[int] = []
        for step in range(2, 7):
            at_once = len(runner.started) - len(trained)
            assert at_once <= (staleness + 1) * rows
            trained += await step_of(supply, step)
            assert set(supply.position(step).pending).isdisjoint(trained)
        assert trained == list(range(4, 4 + 5 * rows))
        await supply.close()

    asyncio.run(main())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    staleness=st.integers(1, 4),
    rows=st.integers(1, 4),
    steps=st.integers(1, 8),
    dynamic=st.booleans(),
    kills=st.lists(st.integers(0, 8), max_size=3),
)
def test_nothing_is_lost_or_trained_on_twice_or_too_old(
    seed: int, staleness: int, rows: int, steps: int, dynamic: bool, kills: list[int]
) -> None:
    """Groups finish in any order; the run is killed after some steps and goes on from there."""
    chance = random.Random(seed)
    # A step samples eight times its rows at most: never eight in a row are flat.
    flat = {row for row in range(500) if dynamic and row % 8 and chance.random() < 0.4}
    trained: list[int] = []
    aside: set[int] = set()

    async def part(first: int, last: int, position: DataPosition) -> DataPosition:
        """From one step to another."""
        sampled_at: dict[int, int] = {}
        version = first

        async def hold(row: int) -> None:
            sampled_at.setdefault(row, version)
            for _ in range(chance.choice((0, 0, 1, 3, 40))):
                await asyncio.sleep(0)

        runner = Rows(hold, flat)
        supply = overlapping(runner, staleness, rows=rows, steps=steps, dynamic=dynamic)
        supply.resume(first, position)
        for step in range(first + 1, last + 1):
            taken = rows_of(await supply.take(step))
            assert len(taken) == rows
            assert all(step - 1 - sampled_at[row] <= staleness for row in taken)
            trained.extend(taken)
            supply.trained(step)
            version = step
            supply.weights_updated(step)
        aside.update(flat & set(map(int, (name[1:] for name in runner.told))))
        kept = in_flight(supply, last)
        assert set(kept.pending).isdisjoint(trained)
        await supply.close()
        return kept

    position, done = DataPosition(0), 0
    for step in [*sorted(kill for kill in kills if kill < steps), steps]:
        position = asyncio.run(part(done, step, position))
        done = step
    assert len(trained) == len(set(trained)) == steps * rows
    assert flat.isdisjoint(trained)
    left = set(range(position.next)) - set(trained) - set(position.pending)
    assert left <= flat, "what is neither trained on nor kept for later was set aside"
    if not dynamic:
        assert sorted(trained) == list(range(steps * rows)), "and in the end every row was trained on once"


def test_the_age_of_tokens_is_counted_in_versions() -> None:
    one = make_episode("x", weight_versions=(-1, 3, 5))
    other = make_episode("x", weight_versions=(-1, 5, 5))
    metrics = staleness_metrics([Group("g", make_task(), (one, other))], 5)
    assert metrics == {"staleness/mean": 0.5, "staleness/max": 2.0}
    assert staleness_metrics([], 5) == {}
