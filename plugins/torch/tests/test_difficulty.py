"""Difficulty pools: which tasks are skipped, when they return, and that a resumed run skips the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.loop.checkpoints import LoopState, load_state, save_checkpoint
from toolrl.loop.data import EndlessOrder
from toolrl.rollouts.environment import Limits
from toolrl.types import Group, RewardEntry, Task
from toolrl_plugin_torch.algorithm import AlgorithmConfig, DifficultyConfig
from toolrl_plugin_torch.loop.batches import BatchSource, DataPosition, Demand, SynchronousBatches
from toolrl_plugin_torch.loop.difficulty import DifficultyPools
from toolrl_plugin_torch.loop.overlap import OverlappingBatches
from toolrl_plugin_torch.objective.credit import is_flat
from toolrl_testing.fakes import make_episode, make_task

LIMITS = Limits(max_turn_tokens=20, max_episode_tokens=200)
TASKS = [make_task(f"question {number}", id=f"t{number}") for number in range(12)]


def by_row(row: int) -> float:
    """Four tasks that are always solved, four that never are, four between."""
    return (1.0, 0.0, 0.5)[row // 4]


class Graded:
    """A runner whose groups of two come out as `rate(row)` says."""

    def __init__(self, rate: Callable[[int], float] = by_row, judged: bool = True) -> None:
        self.rate = rate
        self.judged = judged
        self.started: list[int] = []

    async def run(self, tasks: Sequence[Task], size: int, limits: Limits, *, round_id: str) -> list[Group]:
        return [await self.group(task, 0, size, limits, round_id=round_id, gate=None) for task in tasks]

    async def group(self, task: Task, number: int, size: int, limits: Limits, *, round_id: str, gate: Any) -> Group:
        row = int(task.id[1:])
        self.started.append(row)
        episodes = []
        for index in range(size):
            right = float(index < round(self.rate(row) * size))
            metrics = {"correct": right} if self.judged else {}
            reward = (RewardEntry(None, "reward:r", right),)
            episodes.append(make_episode("x", task=task, index=index, group=round_id, rewards=reward, metrics=metrics))
        return Group(f"{round_id}/{number}", task, tuple(episodes))

    def gate(self) -> None: ...

    def check(self, groups: Iterable[Group]) -> None: ...

    def notify(self, groups: Iterable[Group]) -> None: ...


def source(runner: Graded, *, tasks: int = 12, kind: str = "turns", rows: int = 4, **settings: Any) -> BatchSource:
    order = EndlessOrder(TASKS[:tasks], seed=0, shuffle=settings.pop("shuffle", False))
    algorithm = AlgorithmConfig(dynamic_sampling=kind == "dynamic")
    flat = (lambda group: is_flat(group, algorithm)) if kind == "dynamic" else None
    demand = Demand(100, rows, 2, LIMITS, flat)
    pools = DifficultyPools(order, DifficultyConfig(**{"revisit": 3, **settings})) if settings != {"off": 1} else None
    if kind == "overlap":
        return OverlappingBatches(runner, order, demand, max_staleness=1, replay=0.5, pools=pools)  # type: ignore[arg-type]
    return SynchronousBatches(runner, order, demand, pools)  # type: ignore[arg-type]


async def step_of(supply: BatchSource, step: int) -> list[int]:
    """Take a step's groups, train on them and hand the weights over."""
    groups = await supply.take(step)
    supply.trained(step)
    supply.weights_updated(step)
    return [int(group.task.id[1:]) for group in groups]


@pytest.mark.parametrize("judged", [True, False])
async def test_what_is_always_or_never_solved_is_skipped_but_for_every_third_epoch(judged: bool) -> None:
    runner = Graded(judged=judged)
    supply = source(runner)
    assert [await step_of(supply, step) for step in (1, 2, 3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert supply.metrics() == {"tasks/solved": 4.0, "tasks/unsolved": 4.0, "tasks/active": 4.0}
    # The rows of the second, third and fourth epoch: of those that are set aside each is in one of them.
    epochs = [*[2, 5, 8, 9, 10, 11], *[1, 4, 7, 8, 9, 10, 11], *[0, 3, 6, 8, 9, 10, 11]]
    assert [row for step in range(4, 9) for row in await step_of(supply, step)] == epochs
    # One of the unsolved has become learnable by the next time it is looked at.
    runner.rate = lambda row: 0.5 if row == 5 else by_row(row)
    fifth = [2, 5, 8, 9, 10, 11]
    assert [row for step in (9, 10) for row in await step_of(supply, step)] == [*fifth, 1, 4]
    assert await step_of(supply, 11) == [5, 7, 8, 9]
    assert supply.metrics() == {"tasks/solved": 4.0, "tasks/unsolved": 3.0, "tasks/active": 5.0}


@pytest.mark.parametrize(
    ("rewards", "aside"),
    [((1.0, -1.0), 0), ((5.0, 0.0), 0), ((-1.0, -1.0), 1), ((5.0, 5.0), 1), ((0.5, 0.5), 0)],
)
def test_groups_of_rewards_that_differ_are_not_set_aside(rewards: tuple[float, ...], aside: int) -> None:
    episodes = [
        make_episode("x", task=TASKS[0], index=index, group="g", rewards=(RewardEntry(None, "reward:r", reward),))
        for index, reward in enumerate(rewards)
    ]
    pools = DifficultyPools(EndlessOrder(TASKS, seed=0, shuffle=False), DifficultyConfig())
    pools.judge([(0, Group("g", TASKS[0], tuple(episodes)))])
    assert len(pools.kept()) == aside


def through_a_checkpoint(position: DataPosition, step: int, folder: Path) -> DataPosition:
    fields = {"position": position.next, "pending": position.pending, "buffer": position.buffer}
    state = LoopState(step, step, config_digest="", pass_rates=position.pass_rates, **fields)
    path = save_checkpoint(folder, state, lambda folder: None)
    read = load_state(path)
    return DataPosition(read.position, read.pending, read.buffer, read.pass_rates)


@pytest.mark.parametrize("kind", ["turns", "dynamic"])
async def test_a_run_that_is_killed_after_each_step_takes_the_same_rows(kind: str, tmp_path: Path) -> None:
    whole, expected = source(Graded(), kind=kind, shuffle=True), []
    for step in range(1, 15):
        expected.append(await step_of(whole, step))
    position = DataPosition(0)
    for step, rows in enumerate(expected, 1):
        part = source(Graded(), kind=kind, shuffle=True)
        part.resume(step - 1, position)
        assert await step_of(part, step) == rows, step
        position = through_a_checkpoint(part.position(step), step, tmp_path)
        await part.take(step + 1)
        assert part.position(step) == position, "what isn't trained on yet isn't judged"


async def test_while_sampling_overlaps_what_is_set_aside_is_started_no_more(tmp_path: Path) -> None:
    runner, resumed = Graded(), Graded()
    supply = source(runner, kind="overlap", revisit=1000)
    for step in range(1, 12):
        await step_of(supply, step)
    await supply.close()
    # The first epoch, and what was started before the last of its groups was trained on.
    assert {8, 9, 10, 11} == set(runner.started[24:])
    position = through_a_checkpoint(supply.position(11), 11, tmp_path)
    supply = source(resumed, kind="overlap", revisit=1000)
    supply.resume(11, position)
    assert supply.metrics()["tasks/active"] == 4.0
    for step in range(12, 20):
        await step_of(supply, step)
    await supply.close()
    assert {8, 9, 10, 11} == set(resumed.started)


async def test_it_can_be_turned_on_and_off_between_two_resumes(tmp_path: Path) -> None:
    """A checkpoint of an older version says nothing of pass rates."""
    before = source(Graded(), off=1)
    await step_of(before, 1)
    position = through_a_checkpoint(before.position(1), 1, tmp_path)
    state = tmp_path / "step-000001" / "trainer" / "state.json"
    facts = json.loads(state.read_text())
    del facts["pass_rates"]
    state.write_text(json.dumps(facts))
    assert load_state(tmp_path / "step-000001").pass_rates == {}
    on = source(Graded())
    on.resume(1, position)
    for step in (2, 3, 4, 5):
        await step_of(on, step)
    assert on.position(5).next > 5 * 4
    off = source(Graded(), off=1)
    off.resume(5, on.position(5))
    assert off.metrics() == {}
    assert len(await step_of(off, 6)) == 4
