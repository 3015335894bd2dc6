"""More is started than a step needs, and the slowest are cut: no row is lost, and none is cut twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.config.algorithm import AlgorithmConfig
from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.runner import Runner
from toolrl.testing.fakes import FakeChatFormat, ScriptedEngine, make_episode, make_task
from toolrl.tools import Tool, as_toolset
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.train.credit import is_flat
from toolrl.train.data import EndlessOrder
from toolrl.train.oversampling import OverSampling
from toolrl.train.supply import DataPosition, Demand, TurnTaking
from toolrl.types import Group, ParsedTurn, RewardEntry, Task, ToolCall, ToolSpec

LIMITS = Limits(max_turn_tokens=60, max_episode_tokens=900)
TASKS = [make_task(id=f"t{number}") for number in range(1000)]


def demand(*, dynamic: bool = False, **changes: Any) -> Demand:
    flat = partial(is_flat, algorithm=AlgorithmConfig()) if dynamic else None
    return Demand(**{"steps": 6, "rows": 4, "group_size": 2, "limits": LIMITS, "flat": flat, **changes})


class Holding(ScriptedEngine):
    """Notes that it was held."""

    holds = 0

    @asynccontextmanager
    async def hold(self) -> Iterator[None]:  # type: ignore[misc]
        self.holds += 1
        yield


class Rows:
    """A runner that samples nothing: `hold(row)` is awaited before a row's group is there."""

    def __init__(self, hold: Callable[[int], Awaitable[None]] | None = None, flat: Iterable[int] = ()) -> None:
        self.hold = hold
        self.flat = set(flat)
        self.started: list[int] = []
        self.names: list[str] = []
        self.told: list[int] = []
        self.cancelled: list[int] = []
        self.engine = Holding(["x"])

    async def group(
        self, task: Task, number: int, size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        row = int(task.id[1:])
        self.started.append(row)
        self.names.append(f"{round_id}/{number}")
        try:
            if self.hold is not None:
                await self.hold(row)
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        rewards = [float(index and row not in self.flat) for index in range(size)]
        episodes = [
            make_episode("x", task=task, index=index, rewards=(RewardEntry(None, "reward:r", reward),))
            for index, reward in enumerate(rewards)
        ]
        return Group(f"{round_id}/{number}/{task.id}", task, tuple(episodes))

    def gate(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(1000)

    def check(self, groups: Sequence[Group]) -> None:
        pass

    def tell(self, groups: Iterable[Group]) -> None:
        self.told += rows_of(groups)


def rows_of(groups: Iterable[Group]) -> list[int]:
    return [int(group.task.id[1:]) for group in groups]


def over(runner: Any, factor: float = 1.5, **changes: Any) -> OverSampling:
    order = EndlessOrder(TASKS, seed=0, shuffle=False)
    return OverSampling(runner, order, demand(**changes), factor=factor, engine=runner.engine, tell=runner.tell)


async def step_of(supply: OverSampling, step: int) -> list[int]:
    rows = rows_of(await supply.take(step))
    supply.trained(step)
    supply.weights_are(step)
    return rows


def slow(*rows: int, once: bool = True) -> Callable[[int], Awaitable[None]]:
    """These rows never end, with `once` when they are sampled first."""
    seen: set[int] = set()

    async def hold(row: int) -> None:
        if row in rows and row not in seen:
            if once:
                seen.add(row)
            await asyncio.Event().wait()

    return hold


def test_the_slowest_are_cut_and_come_first_in_the_next_step() -> None:
    async def main() -> None:
        runner = Rows(slow(0, 2))
        supply = over(runner)
        assert await step_of(supply, 1) == [1, 3, 4, 5]
        assert runner.started == [0, 1, 2, 3, 4, 5]
        assert sorted(runner.cancelled) == [0, 2]
        assert runner.engine.holds == 1, "the engine has let go of them before anybody trains"
        assert supply.metrics() == {"groups/cut": 2.0}
        assert supply.position(1) == DataPosition(6, (0, 2))
        assert await step_of(supply, 2) == [0, 2, 6, 7]
        assert runner.started[6:] == [0, 2, 6, 7, 8, 9]
        assert runner.told == [1, 3, 4, 5, 0, 2, 6, 7], "only what is trained on is told of"
        assert supply.position(2) == DataPosition(10, (8, 9))
        await supply.close()

    asyncio.run(main())


def test_a_row_that_was_cut_is_sampled_anew_by_another_chance() -> None:
    async def main() -> None:
        runner = Rows(slow(0))
        supply = over(runner, 1.25)
        await step_of(supply, 1)
        await step_of(supply, 2)
        assert runner.names[0] == "train-1/0"
        assert runner.names[5] == "train-2/0"
        assert len(set(runner.names)) == len(runner.names)
        await supply.close()

    asyncio.run(main())


def test_a_row_that_was_cut_is_not_cut_again() -> None:
    """A task whose episodes are always slow is trained on, too."""
    free = asyncio.Event()

    async def hold(row: int) -> None:
        if row == 0:
            await free.wait()

    async def main() -> None:
        supply = over(Rows(hold), 1.25)
        assert await step_of(supply, 1) == [1, 2, 3, 4]
        second = asyncio.create_task(step_of(supply, 2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        free.set()
        assert await second == [0, 5, 6, 7]
        assert supply.position(2) == DataPosition(9, (8,)), "what was whole and not needed comes again"
        await supply.close()

    asyncio.run(main())


def test_flat_groups_are_replaced_at_once() -> None:
    async def main() -> None:
        runner = Rows(slow(5), flat=[0, 3])
        supply = over(runner, 1.25, dynamic=True)
        assert await step_of(supply, 1) == [1, 2, 4, 6]
        assert supply.metrics() == {"groups/cut": 1.0, "groups/set_aside": 2.0}
        assert sorted(runner.told) == [0, 1, 2, 3, 4, 6]
        assert supply.position(1) == DataPosition(7, (5,))
        assert await step_of(supply, 2) == [5, 7, 8, 9]
        await supply.close()

    asyncio.run(main())


def test_where_everything_is_flat_the_run_stops() -> None:
    with pytest.raises(RunStoppedError, match="step 1: of 40 groups the rewards of 40 were all equal"):
        asyncio.run(over(Rows(flat=range(1000)), 1.25, dynamic=True).take(1))


def test_what_ends_a_group_ends_the_step_and_cuts_the_others() -> None:
    async def hold(row: int) -> None:
        if row == 1:
            raise ValueError("a bug")
        await asyncio.Event().wait()

    async def main() -> None:
        runner = Rows(hold)
        supply = over(runner)
        with pytest.raises(ValueError, match="a bug"):
            await supply.take(1)
        assert sorted(runner.cancelled) == [0, 2, 3, 4, 5]
        assert supply.position(0) == DataPosition(0), "nothing was trained on"
        await supply.close()

    asyncio.run(main())


def test_an_interrupt_cuts_everything() -> None:
    async def main() -> None:
        runner = Rows(slow(*range(10), once=False))
        supply = over(runner)
        taking = asyncio.create_task(supply.take(1))
        await asyncio.sleep(0.01)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert sorted(runner.cancelled) == list(range(6))
        await supply.close()

    asyncio.run(main())


def test_a_run_that_goes_on_begins_with_what_was_cut() -> None:
    async def main() -> None:
        before = over(Rows(slow(1)), 1.25)
        await step_of(before, 1)
        position = before.position(1)
        await before.close()

        runner = Rows()
        supply = over(runner, 1.25)
        supply.resume(1, position)
        assert supply.position(1) == position
        assert await step_of(supply, 2) == [1, 5, 6, 7]
        await supply.close()

        with pytest.raises(CheckpointError, match="rows of data were taken in 1 steps"):
            over(Rows(), 1.25, rows=3).resume(1, position)
        with pytest.raises(CheckpointError, match="being sampled"):
            TurnTaking(Rows(), EndlessOrder(TASKS, seed=0), demand()).resume(1, position)  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match="1 groups waited"):
            supply.resume(1, DataPosition(5, (1,), ({"row": 1},)))
        with pytest.raises(CheckpointError, match="1 groups waited"):
            supply.resume(1, DataPosition(3, (), ({"row": 1},)))

    asyncio.run(main())


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 5),
    factor=st.sampled_from([1.01, 1.25, 2.0]),
    steps=st.integers(1, 7),
    dynamic=st.booleans(),
    kills=st.lists(st.integers(0, 7), max_size=2),
)
def test_nothing_is_lost_or_trained_on_twice(
    seed: int, rows: int, factor: float, steps: int, dynamic: bool, kills: list[int]
) -> None:
    """Groups finish in any order; the run is killed after some steps and goes on from there."""
    chance = random.Random(seed)
    flat = {row for row in range(500) if dynamic and chance.random() < 0.4}
    trained: list[int] = []
    cuts: dict[int, int] = {}

    async def hold(row: int) -> None:
        for _ in range(chance.choice((0, 0, 1, 3, 40))):
            await asyncio.sleep(0)

    async def part(first: int, last: int, position: DataPosition) -> DataPosition:
        runner = Rows(hold, flat)
        supply = over(runner, factor, rows=rows, steps=steps, dynamic=dynamic)
        supply.resume(first, position)
        for step in range(first + 1, last + 1):
            taken = await step_of(supply, step)
            assert len(taken) == rows
            trained.extend(taken)
            for row in supply.position(step).pending:
                cuts[row] = cuts.get(row, 0) + 1
        await supply.close()
        return supply.position(last)

    position, done = DataPosition(0), 0
    for step in [*sorted(kill for kill in kills if kill < steps), steps]:
        position = asyncio.run(part(done, step, position))
        done = step
    assert len(trained) == len(set(trained)) == steps * rows
    left = set(range(position.next)) - set(trained) - set(position.pending)
    assert left <= flat, "what is neither trained on nor kept for later was set aside"
    assert all(count == 1 for count in cuts.values()), "no row is cut twice"


# With real episodes and tools.


class Waits(Tool):
    """Holds every call of some episodes until it is told to go on."""

    spec = ToolSpec("wait", "Waits.")

    def __init__(self) -> None:
        super().__init__()
        self.open: set[str] = set()
        self.held = 0

    async def create(self, instance_id: str, **create_kwargs: Any) -> None:
        self.open.add(instance_id)

    async def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> str:
        if execute_kwargs.get("slow"):
            self.held += 1
            await asyncio.Event().wait()
        return "done"

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        self.open.discard(instance_id)


class Calls:
    """Every first turn calls."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        items = (ToolCall("wait", {}, span=(0, len(text)), raw=text),) if text == "call" else ()
        return ParsedTurn(items, content=text)

    def render_results(self, records: Any) -> list[Any]:
        from toolrl.parsing.results import tool_messages

        return tool_messages(records)


def test_tools_of_cut_episodes_are_released() -> None:
    async def main() -> None:
        tool = Waits()
        box = ToolBox([ToolEntry("wait", as_toolset(tool, None, None))])  # type: ignore[arg-type]
        environment = Environment("default", Calls(), FakeChatFormat(), box)
        engine = Holding(["call", "end"])
        runner = Runner(engine, {"default": environment}, concurrency=8)
        kwargs = {"wait": {"execute_kwargs": {"slow": True}}}
        tasks = [make_task(id=f"t{number}", tools_kwargs=kwargs if number == 1 else {}) for number in range(9)]
        order = EndlessOrder(tasks, seed=0, shuffle=False)
        supply = OverSampling(runner, order, demand(rows=2), factor=1.5, engine=engine, tell=runner.tell)
        await engine.start()
        await box.start()
        groups = await supply.take(1)
        assert rows_of(groups) == [0, 2]
        assert tool.held == 2, "both episodes of the group were at their tool"
        assert not tool.open, "and both were released"
        assert engine.holds == 1
        assert {"train-1/1/t1#0", "train-1/1/t1#1"} <= set(engine.closed)
        assert all(episode.failure is None for group in groups for episode in group.episodes)
        await supply.close()
        await box.stop()
        await engine.stop()

    asyncio.run(main())


def test_a_tool_that_takes_long_to_release_does_not_hold_the_step_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolrl.train.oversampling._CLEANUP", 0.01)
    free = asyncio.Event()
    released: list[int] = []

    async def hold(row: int) -> None:
        if row == 0 and not released:
            try:
                await asyncio.Event().wait()
            finally:
                await free.wait()
                released.append(row)

    async def main() -> None:
        runner = Rows(hold)
        supply = over(runner, 1.25)
        assert await step_of(supply, 1) == [1, 2, 3, 4]
        assert not released
        free.set()
        await supply.close()
        assert released == [0], "and the end of the run waits for it"

    asyncio.run(main())


def test_shares_that_binary_numbers_miss_are_meant_as_written() -> None:
    async def main() -> None:
        async def never(_: int) -> None:
            await asyncio.Event().wait()

        runner = Rows(never)
        supply = over(runner, 1.1, rows=100)
        taking = asyncio.ensure_future(supply.take(1))
        await asyncio.sleep(0.01)
        assert len(runner.started) == 110
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await supply.close()

    asyncio.run(main())
