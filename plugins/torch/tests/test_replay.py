"""Groups that are trained on more than once, and what a checkpoint keeps of finished ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.loop.batches import DataPosition, Demand
from toolrl.loop.checkpoints import LoopState, load_state, save_checkpoint
from toolrl.loop.data import EndlessOrder
from toolrl.loop.overlap import OverlappingBatches
from toolrl.rollout.environment import Limits
from toolrl.runs.records import episode_to_json
from toolrl.types import Group, MediaInput, RewardEntry, Task
from toolrl_testing.fakes import make_episode, make_task

LIMITS = Limits(max_turn_tokens=20, max_episode_tokens=200)
TASKS = [make_task(f"question {number}", id=f"t{number}") for number in range(1000)]


class Rows:
    """A runner that samples nothing: `hold(row)` is awaited before a row's group is there."""

    def __init__(self, hold: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.hold = hold
        self.started: list[int] = []
        self.told: list[int] = []
        self.checked = 0

    async def group(
        self, task: Task, number: int, size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        row = int(task.id[1:])
        self.started.append(row)
        if self.hold is not None:
            await self.hold(row)
        return make_group(row, f"{round_id}/{number}/{task.id}")

    def gate(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(1000)

    def check(self, groups: Sequence[Group]) -> None:
        self.checked += len(groups)

    def notify(self, groups: Iterable[Group]) -> None:
        self.told += rows_of(groups)


def make_group(row: int, name: str = "g", **fields: Any) -> Group:
    rewards = [(RewardEntry(0, "step:t", 0.25), RewardEntry(None, "reward:r", float(index), 0.5)) for index in (0, 1)]
    episodes = [
        make_episode("x", task=TASKS[row], index=index, group=name, rewards=rewards[index], **fields)
        for index in (0, 1)
    ]
    return Group(name, TASKS[row], tuple(episodes))


def rows_of(groups: Iterable[Group]) -> list[int]:
    return [int(group.task.id[1:]) for group in groups]


def supply_of(runner: Rows, *, replay: float = 0.5, staleness: int = 2, **changes: Any) -> OverlappingBatches:
    demand = Demand(**{"steps": 8, "rows": 4, "group_size": 2, "limits": LIMITS, **changes})
    order = EndlessOrder(TASKS, seed=0, shuffle=False)
    return OverlappingBatches(
        runner, order, demand, max_staleness=staleness, replay=replay  # type: ignore[arg-type]
    )  # fmt: skip


async def step_of(supply: OverlappingBatches, step: int) -> tuple[list[int], list[int]]:
    """Rows that are trained on first in this step, and those that are again."""
    rows = rows_of(await supply.take(step))
    new = len(rows) - supply.replayed
    supply.trained(step)
    supply.weights_updated(step)
    return rows[:new], rows[new:]


def test_half_of_each_step_is_trained_on_twice() -> None:
    async def main() -> None:
        runner = Rows()
        supply = supply_of(runner)
        assert await step_of(supply, 1) == ([0, 1, 2, 3], []), "there is nothing yet to train on again"
        assert supply.metrics()["groups/replayed"] == 0.0
        assert await step_of(supply, 2) == ([4, 5], [0, 1])
        assert supply.metrics()["groups/replayed"] == 2.0
        assert await step_of(supply, 3) == ([6, 7], [2, 3]), "what was used least, and of it the oldest"
        assert await step_of(supply, 4) == ([8, 9], [6, 7]), "rows 4 and 5 were begun three versions ago"
        assert runner.told == list(range(10)), "each is told of once"
        assert runner.checked == 10
        await supply.close()

    asyncio.run(main())


def test_what_is_too_old_is_not_trained_on_again() -> None:
    async def main() -> None:
        supply = supply_of(Rows(), staleness=1, replay=0.75)
        assert await step_of(supply, 1) == ([0, 1, 2, 3], [])
        # Rows 0 to 3 are of version 0: step 2 trains version 1, step 3 version 2.
        assert await step_of(supply, 2) == ([4], [0, 1, 2])
        third = await step_of(supply, 3)
        assert set(third[1]) == {4}
        assert third[0] == [5, 6, 7], "new ones take the place of those that are missing"
        await supply.close()

    asyncio.run(main())


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    staleness=st.integers(1, 4),
    rows=st.integers(1, 5),
    steps=st.integers(1, 8),
    replay=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    kills=st.lists(st.integers(0, 8), max_size=3),
)
def test_every_row_is_new_once_and_nothing_is_too_old(
    seed: int, staleness: int, rows: int, steps: int, replay: float, kills: list[int]
) -> None:
    """Groups finish in any order; the run is killed after some steps and goes on, with what a checkpoint kept."""
    chance = random.Random(seed)
    new: list[int] = []
    sampled_at: dict[int, int] = {}
    started: Counter[int] = Counter()

    async def part(first: int, last: int, position: DataPosition) -> DataPosition:
        version = first
        kept = {record["row"] for record in position.buffer}

        async def hold(row: int) -> None:
            sampled_at[row] = version
            for _ in range(chance.choice((0, 0, 1, 3, 40))):
                await asyncio.sleep(0)

        runner = Rows(hold)
        supply = supply_of(
            runner, replay=replay, staleness=staleness, rows=rows,
            steps=steps,
        )  # fmt: skip
        supply.resume(first, position)
        for step in range(first + 1, last + 1):
            fresh, again = await step_of(supply, step)
            assert len(fresh) + len(again) == rows
            assert len(again) <= rows * replay
            assert set(again) <= set(new)
            assert all(step - 1 - sampled_at[row] <= staleness for row in [*fresh, *again])
            new.extend(fresh)
            version = step
        await supply.close()
        started.update(runner.started)
        assert kept.isdisjoint(runner.started), "what a checkpoint kept isn't sampled again"
        return supply.position(last)

    position, done = DataPosition(0), 0
    for step in [*sorted(kill for kill in kills if kill < steps), steps]:
        position = json_round_trip(asyncio.run(part(done, step, position)))
        done = step
    assert len(new) == len(set(new))
    assert set(range(position.next)) == {*new, *position.pending}, "and no row is lost"
    if not replay:
        assert len(new) == steps * rows


def json_round_trip(position: DataPosition) -> DataPosition:
    return replace(position, buffer=tuple(json.loads(json.dumps(position.buffer))))


def test_a_checkpoint_keeps_finished_groups_with_their_episodes(tmp_path: Path) -> None:
    async def main() -> None:
        async def hold(row: int) -> None:
            if row == 5:
                await asyncio.Event().wait()

        before = supply_of(Rows(hold))
        await step_of(before, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        await step_of(before, 2)
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
        supply = supply_of(runner)
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

    asyncio.run(main())


@pytest.mark.parametrize("change", [{"group_size": 3}, {"staleness": 1}, {"replay": 0.0}])
def test_what_does_not_fit_the_config_any_more_is_sampled_again_or_left(change: dict[str, Any]) -> None:
    async def main() -> None:
        position = DataPosition(
            8, (5, 7), tuple(record(row, version, uses) for row, version, uses in [(7, 0, 0), (3, 0, 1)])
        )
        runner = Rows()
        supply = supply_of(runner, **change)
        supply.resume(2, position)
        new, again = await step_of(supply, 3)
        if "replay" in change:
            assert again == []
            assert 7 in new
            assert 7 not in runner.started
        else:
            assert again == []
            assert {5, 7} <= set(runner.started)
        assert 3 not in new
        await supply.close()

    asyncio.run(main())


def record(row: int, version: int, uses: int) -> Mapping[str, Any]:
    group = make_group(row)
    written = [episode_to_json(replace(episode, task=Task(episode.task.id, ()))) for episode in group.episodes]
    return {"row": row, "version": version, "uses": uses, "group": group.id, "episodes": written}


def test_episodes_with_images_are_not_kept() -> None:
    image = MediaInput("image", (0, 1), "key", {})

    async def main() -> None:
        class Images(Rows):
            async def group(self, *arguments: Any, **settings: Any) -> Group:
                group = await super().group(*arguments, **settings)
                return make_group(int(group.task.id[1:]), group.id, media=(image,))

        supply = supply_of(Images())
        await step_of(supply, 1)
        position = supply.position(1)
        assert position.buffer == ()
        assert position.pending, "their rows are sampled again"
        await supply.close()

    asyncio.run(main())


def test_shares_that_binary_numbers_miss_are_meant_as_written() -> None:
    async def main() -> None:
        supply = supply_of(Rows(), replay=0.29, rows=100)
        await step_of(supply, 1)
        assert len((await step_of(supply, 2))[1]) == 29
        await supply.close()

    asyncio.run(main())


def test_groups_of_tasks_that_the_data_no_longer_has_there_are_sampled_again() -> None:
    """A run that goes on with other data must not put a task's episodes under another task."""

    async def main() -> None:
        supply = supply_of(Rows())
        await step_of(supply, 1)
        position = supply.position(1)
        await supply.close()
        kept = {record["row"]: record["uses"] for record in position.buffer}
        assert {0, 1, 2, 3} <= {row for row, uses in kept.items() if uses}
        waiting = sorted(row for row, uses in kept.items() if not uses)
        assert waiting

        runner = Rows()
        order = EndlessOrder(TASKS[100:200], seed=0, shuffle=False)
        demand = Demand(steps=8, rows=4, group_size=2, limits=LIMITS)
        again = OverlappingBatches(
            runner, order, demand, max_staleness=2, replay=0.5  # type: ignore[arg-type]
        )  # fmt: skip
        again.resume(1, position)
        groups = await again.take(2)
        assert all(episode.task.id == group.task.id for group in groups for episode in group.episodes)
        assert again.replayed == 0
        assert {100 + row for row in waiting} <= set(runner.started)
        await again.close()

    asyncio.run(main())
