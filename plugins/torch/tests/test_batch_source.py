"""Where groups come from: nothing lost, nothing twice, nothing older than allowed, whatever finishes first. Groups that
are trained on more than once, and what a checkpoint keeps of finished ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.loop.checkpoints import LoopState, load_state, save_checkpoint
from toolrl.loop.data import EndlessOrder
from toolrl.rollouts.environment import Limits
from toolrl.types import Group, MediaInput, RewardEntry, Task
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.loop.batches import DataPosition, Demand, FixedRows, SynchronousBatches, staleness_metrics
from toolrl_plugin_torch.loop.overlap import OverlappingBatches
from toolrl_plugin_torch.objective.credit import is_flat
from toolrl_testing.fakes import make_episode, make_task

LIMITS = Limits(max_turn_tokens=20, max_episode_tokens=200)
TASKS = [make_task(f"question {number}", id=f"t{number}") for number in range(1000)]


def demand(*, dynamic: bool = False, **changes: Any) -> Demand:
    flat = partial(is_flat, algorithm=AlgorithmConfig()) if dynamic else None
    return Demand(**{"steps": 6, "rows": 2, "group_size": 2, "limits": LIMITS, "flat": flat, **changes})


def make_group(row: int, name: str = "g", *, flat: bool = False, **fields: Any) -> Group:
    episodes = []
    for index in (0, 1):
        outcome = RewardEntry(None, "reward:r", float(index and not flat), 0.5)
        fields |= {"index": index, "group": name, "rewards": (RewardEntry(0, "step:t", 0.25), outcome)}
        episodes.append(make_episode("x", task=TASKS[row], **fields))
    return Group(name, TASKS[row], tuple(episodes))


class Rows:
    """A runner that samples nothing: `hold(row)` is awaited before a row's group is there."""

    def __init__(self, hold: Callable[[int], Awaitable[None]] | None = None, flat: Iterable[int] = ()) -> None:
        self.hold = hold
        self.flat = set(flat)
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.told: list[int] = []
        self.checked = 0
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
        return make_group(row, f"{round_id}/{number}/{task.id}", flat=row in self.flat)

    def gate(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(1000)

    def check(self, groups: Sequence[Group]) -> None:
        self.checked += len(groups)

    def notify(self, groups: Iterable[Group]) -> None:
        self.told += rows_of(groups)


def order() -> EndlessOrder[Task]:
    return EndlessOrder(TASKS, seed=0, shuffle=False)


def rows_of(groups: Iterable[Group]) -> list[int]:
    return [int(group.task.id[1:]) for group in groups]


def overlapping(
    runner: Rows, staleness: int = 2, *, replay: float = 0.0, data: EndlessOrder[Task] | None = None, **changes: Any
) -> OverlappingBatches:
    wanted = demand(**changes)
    return OverlappingBatches(
        runner, data or order(), wanted, max_staleness=staleness, replay=replay  # type: ignore[arg-type]
    )  # fmt: skip


def replaying(
    runner: Rows, *, replay: float = 0.5, staleness: int = 2, rows: int = 4, **changes: Any
) -> OverlappingBatches:
    return overlapping(runner, staleness, replay=replay, steps=8, rows=rows, **changes)


def turns(runner: Rows, **changes: Any) -> SynchronousBatches:
    return SynchronousBatches(runner, order(), demand(**changes))  # type: ignore[arg-type]


async def step_of(supply: OverlappingBatches | SynchronousBatches, step: int) -> list[int]:
    """Take a step's groups, train on them and hand the weights over."""
    rows = rows_of(await supply.take(step))
    supply.trained(step)
    supply.weights_updated(step)
    return rows


async def new_and_again(supply: OverlappingBatches, step: int) -> tuple[list[int], list[int]]:
    """Rows that are trained on first in this step, and those that are again."""
    rows = await step_of(supply, step)
    new = len(rows) - supply.replayed
    return rows[:new], rows[new:]


def in_flight(supply: OverlappingBatches, step: int) -> DataPosition:
    """The position without finished groups, as where these hold images."""
    return replace(supply.position(step), buffer=())


# Turns.


async def test_rows_that_a_checkpoint_left_in_flight_need_a_supply_that_overlaps() -> None:
    position = DataPosition(5, pending=(1, 3))
    with pytest.raises(CheckpointError, match="2 in-flight rows") as refused:
        turns(Rows()).resume(2, position)
    assert "rollout.max_staleness" in str(refused.value.hint)
    supply = overlapping(Rows(), 1)
    supply.resume(2, position)
    assert await step_of(supply, 3) == [1, 3]
    await supply.close()


async def test_flat_groups_are_set_aside_and_others_sampled() -> None:
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


async def test_a_slow_group_is_overtaken_until_its_last_step() -> None:
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


async def test_closing_cancels_what_is_in_flight() -> None:
    async def hold(row: int) -> None:
        if row > 1:
            await asyncio.Event().wait()

    runner = Rows(hold)
    supply = overlapping(runner)
    await step_of(supply, 1)
    await asyncio.sleep(0)
    await supply.close()
    assert sorted(runner.cancelled) == list(range(2, 8))


async def test_groups_that_are_set_aside_count_in_the_rate_of_failures() -> None:
    runner = Rows(flat=[1])
    supply = overlapping(runner, dynamic=True)
    await supply.take(1)
    await supply.close()
    assert runner.checked == 3

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
    assert dead.told == [0, 1], "the episodes that say why are kept"


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    staleness=st.integers(1, 4),
    rows=st.integers(1, 5),
    steps=st.integers(1, 8),
    dynamic=st.booleans(),
    replay=st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.9]),
    buffered=st.booleans(),
    kills=st.lists(st.integers(0, 8), max_size=3),
)
def test_nothing_is_lost_new_twice_or_too_old(
    seed: int, staleness: int, rows: int, steps: int, dynamic: bool, replay: float, buffered: bool, kills: list[int]
) -> None:
    """Groups finish in any order; the run is killed after some steps and goes on from there, with the finished groups
    that a checkpoint kept, or without them, as where they hold images."""
    chance = random.Random(seed)
    # A step samples eight times its rows at most: never eight in a row are flat.
    flat = {row for row in range(500) if dynamic and row % 8 and chance.random() < 0.4}
    new: list[int] = []
    sampled_at: dict[int, int] = {}

    async def part(first: int, last: int, position: DataPosition) -> DataPosition:
        """From one step to another."""
        version = first
        kept = {record["row"] for record in position.buffer}

        async def hold(row: int) -> None:
            sampled_at[row] = version
            for _ in range(chance.choice((0, 0, 1, 3, 40))):
                await asyncio.sleep(0)

        runner = Rows(hold, flat)
        supply = overlapping(runner, staleness, replay=replay, rows=rows, steps=steps, dynamic=dynamic)
        supply.resume(first, position)
        for step in range(first + 1, last + 1):
            fresh, again = await new_and_again(supply, step)
            assert len(fresh) + len(again) == rows
            assert len(again) <= rows * replay
            assert set(again) <= set(new)
            assert all(step - 1 - sampled_at[row] <= staleness for row in [*fresh, *again])
            new.extend(fresh)
            version = step
        await supply.close()
        assert kept.isdisjoint(runner.started), "what a checkpoint kept isn't sampled again"
        found = json_round_trip(supply.position(last))
        assert set(found.pending).isdisjoint(new)
        return found if buffered else replace(found, buffer=())

    position, done = DataPosition(0), 0
    for step in [*sorted(kill for kill in kills if kill < steps), steps]:
        position = asyncio.run(part(done, step, position))
        done = step
    assert len(new) == len(set(new))
    assert flat.isdisjoint(new)
    left = set(range(position.next)) - set(new) - set(position.pending)
    assert left <= flat, "what is neither trained on nor kept for later was set aside"
    if not replay:
        assert len(new) == steps * rows
        assert dynamic or sorted(new) == list(range(steps * rows)), "and in the end every row was trained on once"


def test_the_age_of_tokens_is_counted_in_versions() -> None:
    one = make_episode("x", weight_versions=(-1, 3, 5))
    other = make_episode("x", weight_versions=(-1, 5, 5))
    metrics = staleness_metrics([Group("g", make_task(), (one, other))], 5)
    assert metrics == {"staleness/mean": 0.5, "staleness/max": 2.0}
    assert staleness_metrics([], 5) == {}


# Replay.


async def test_half_of_each_step_is_trained_on_twice() -> None:
    runner = Rows()
    supply = replaying(runner)
    assert await new_and_again(supply, 1) == ([0, 1, 2, 3], []), "there is nothing yet to train on again"
    assert supply.metrics()["groups/replayed"] == 0.0
    assert await new_and_again(supply, 2) == ([4, 5], [0, 1])
    assert supply.metrics()["groups/replayed"] == 2.0
    assert await new_and_again(supply, 3) == ([6, 7], [2, 3]), "what was used least, and of it the oldest"
    assert await new_and_again(supply, 4) == ([8, 9], [6, 7]), "rows 4 and 5 were begun three versions ago"
    assert runner.told == list(range(10)), "each is told of once"
    assert runner.checked == 10
    await supply.close()


def json_round_trip(position: DataPosition) -> DataPosition:
    return replace(position, buffer=tuple(json.loads(json.dumps(position.buffer))))


async def test_a_checkpoint_keeps_finished_groups_with_their_episodes(tmp_path: Path) -> None:
    async def hold(row: int) -> None:
        if row == 5:
            await asyncio.Event().wait()

    before = replaying(Rows(hold))
    await new_and_again(before, 1)
    for _ in range(5):
        await asyncio.sleep(0)
    await new_and_again(before, 2)
    position = before.position(2)
    await before.close()
    assert [(record["row"], record["version"], record["uses"]) for record in position.buffer] == [
        (7, 1, 0), (8, 1, 0), (9, 1, 0), (0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 0, 1), (4, 0, 1), (6, 1, 1)
    ]  # fmt: skip
    assert position.pending == (5, 7, 8, 9)

    state = LoopState(2, 2, position.next, "digest", position.pending, position.buffer)
    loaded = load_state(save_checkpoint(tmp_path, state, lambda folder: None))
    assert loaded.buffer == json_round_trip(position).buffer

    runner = Rows()
    supply = replaying(runner)
    supply.resume(2, DataPosition(loaded.position, loaded.pending, loaded.buffer))
    assert supply.position(2) == json_round_trip(position), "also where it is saved again before a step"
    groups = await supply.take(3)
    assert rows_of(groups) == [7, 8, 2, 3]
    await asyncio.sleep(0)
    assert runner.started[0] == 5, "what was in flight is sampled again"
    assert {7, 8, 9}.isdisjoint(runner.started)
    by_row = dict(zip(rows_of(groups), groups, strict=True))
    for row in (2, 3, 7, 8):
        wanted = make_group(row, by_row[row].id)
        assert by_row[row] == wanted, "the same in every field, its task too"
    await supply.close()


@pytest.mark.parametrize(
    "fields", [{"media": (MediaInput("image", (0, 1), "k", {}),)}, {"routes": bytes(70_000)}, {"sampling_masks": b"x"}]
)
async def test_episodes_with_images_or_routes_are_not_kept(fields: dict[str, Any]) -> None:
    class Large(Rows):
        async def group(self, *arguments: Any, **settings: Any) -> Group:
            group = await super().group(*arguments, **settings)
            return make_group(int(group.task.id[1:]), group.id, **fields)

    supply = replaying(Large())
    await new_and_again(supply, 1)
    position = supply.position(1)
    assert position.buffer == ()
    assert position.pending, "their rows are sampled again"
    await supply.close()


async def test_groups_of_tasks_that_the_data_no_longer_has_there_are_sampled_again() -> None:
    """A run that goes on with other data must not put a task's episodes under another task."""
    supply = replaying(Rows())
    await new_and_again(supply, 1)
    position = supply.position(1)
    await supply.close()
    kept = {record["row"]: record["uses"] for record in position.buffer}
    assert {0, 1, 2, 3} <= {row for row, uses in kept.items() if uses}
    waiting = sorted(row for row, uses in kept.items() if not uses)
    assert waiting

    runner = Rows()
    again = replaying(runner, data=EndlessOrder(TASKS[100:200], seed=0, shuffle=False))
    again.resume(1, position)
    groups = await again.take(2)
    assert all(episode.task.id == group.task.id for group in groups for episode in group.episodes)
    assert again.replayed == 0
    assert {100 + row for row in waiting} <= set(runner.started)
    await again.close()
