"""A run in virtual time: toolrl's own dealing, supplies and workers, over engines and trainers that only take time.

What is toolrl's: `WorkerPool` with its lines deals groups to the least loaded worker, `RolloutWorker` takes and reports
them, `TurnTaking` and `Overlapping` decide what a step starts and takes, as in a run; all of it on an event loop whose
clock jumps. What stands in for the rest:

- An engine gives every sequence that it decodes a token in the time that a batch of so many takes; sequences join and
  leave at any moment. While weights are written it stands still, as the embedded one does.
- An episode takes its turn at the worker's places, decodes a turn, waits for a tool, decodes the next.
- A message between driver and worker waits for the driver, which does one thing at a time, and takes its share of it.
- The trainer's step is that of the loop: take, update, hand the weights over; each of these takes its time.

Colocated runs have no pool: a rank takes every n-th group, as `toolrl.loop.shared_rollout` does, and all wait for the
last. Lengths of turns and times of tools are drawn for each episode by itself, so two scenarios with the same seed have
the same episodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from scale_worker import Driver, Sampler, Scenario

from toolrl.cluster.messages import GroupOrder, Handoff, WorkerSpec
from toolrl.cluster.pool import WorkerPool
from toolrl.cluster.worker import RolloutWorker
from toolrl.loop.data import EndlessOrder
from toolrl.loop.overlap import Overlapping
from toolrl.loop.supply import Demand, Supply, TurnTaking, staleness_metrics
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import Oversight
from toolrl.testing.clock import run_in_virtual_time
from toolrl.testing.fakes import FakeWeights, make_task
from toolrl.types import Group, Task

LIMITS = Limits(max_turn_tokens=1, max_episode_tokens=2)
MANY = 1_000_000
"""Tasks of the data: each row has one of its own."""


@dataclass
class Outcome:
    """What a simulated run took, over the steps that were counted."""

    step: float
    """Seconds a step."""
    episodes_a_second: float
    waiting: float
    """Shares of the trainer's time: it waits for groups,"""
    updating: float
    handing: float
    """hands weights over."""
    decoding: float
    """Shares of the engines' time: something to decode,"""
    standing: float
    """weights are written,"""
    idle: float
    """nothing to do."""
    in_tools: float
    """Share of the episodes' time with a place that they wait for tools."""
    driver: float
    """Share of the driver's time that it works."""
    staleness_mean: float
    staleness_max: float
    most_in_flight: int
    """Episodes of one worker."""


class Replica:
    """A `toolrl.cluster.worker.Replica`."""

    def __init__(self, scenario: Scenario, version: int) -> None:
        self.runner: Any = Sampler(scenario, version)

    async def load(self, handoff: Handoff) -> None:
        """Write weights, while the engine stands still."""
        await self.runner.engine.hold(self.runner.scenario.receive)
        self.runner.version = handoff.version

    def status(self) -> dict[str, Any]:
        """Nothing that anybody asks for."""
        return {}


@asynccontextmanager
async def replica(spec: WorkerSpec, handoff: Handoff) -> AsyncIterator[Replica]:
    """For `RolloutWorker.start`; the spec carries what its worker is."""
    made: Replica = spec.loaded  # type: ignore[assignment]
    yield made


class Process:
    """A worker's process, reached by messages that the driver sends and reads one at a time."""

    def __init__(self, scenario: Scenario, driver: Driver) -> None:
        self._scenario = scenario
        self._driver = driver
        self._worker = RolloutWorker()

    def call(self, method: str, *arguments: Any) -> Awaitable[Any]:
        return self._call(method, arguments)

    async def _call(self, method: str, arguments: Sequence[Any]) -> Any:
        costs = self._scenario.costs
        if method == "deal":
            orders: Sequence[GroupOrder] = arguments[0]
            await self._driver.take(costs.order + costs.deal * len(orders))
        if self._scenario.message:
            await asyncio.sleep(self._scenario.message)
        answer = await getattr(self._worker, method)(*arguments)
        if self._scenario.message:
            await asyncio.sleep(self._scenario.message)
        if method == "poll":
            await self._driver.take(costs.report + costs.episode * self._scenario.group * len(answer.done))
        return answer

    def kill(self) -> None:
        pass

    def last_words(self) -> list[str]:
        return []


class Courier:
    """Weights that take time to be made ready; nothing is sent."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def publish(self, weights: Any, version: int) -> Handoff:
        if self._seconds and version:
            await asyncio.sleep(self._seconds)
        return Handoff(version)

    def close(self) -> None:
        pass


class Colocated:
    """Ranks that sample their shares and wait for each other. Stands where `SharedRunner` does."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self._samplers = samplers

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        ranks = len(self._samplers)
        going = []
        for number, task in enumerate(tasks):
            sampler = self._samplers[number % ranks]
            going.append(sampler.group(task, number, group_size, limits, round_id=round_id, gate=sampler.gate()))
        return list(await asyncio.gather(*going))

    async def update_weights(self, weights: Any, version: int) -> None:
        for sampler in self._samplers:
            sampler.version = version


@dataclass
class _Sums:
    """Seconds since counting began."""

    began: float = 0.0
    waiting: float = 0.0
    updating: float = 0.0
    handing: float = 0.0
    staleness: list[dict[str, float]] = field(default_factory=list)
    engines: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    driver: float = 0.0


class Simulation:
    """One run of a scenario. Use it on one event loop."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.driver = Driver()
        self.samplers: list[Sampler] = []

    def _replica(self) -> Replica:
        made = Replica(self.scenario, 0)
        self.samplers.append(made.runner)
        return made

    @asynccontextmanager
    async def source(self) -> AsyncIterator[Any]:
        """Who samples: a pool of workers, or ranks."""
        scenario = self.scenario
        if scenario.colocated:
            self.samplers = [Sampler(scenario, 0) for _ in range(scenario.workers)]
            yield Colocated(self.samplers)
            return
        loaded: list[Any] = [self._replica() for _ in range(scenario.workers)]
        pool = WorkerPool(
            lambda number: Process(scenario, self.driver),
            lambda number: WorkerSpec(
                number, loaded[number], f"{__name__}:replica", "", "", "cpu", ".", "/nowhere"
            ),
            Courier(scenario.publish),
            Oversight(0.0),
            workers=scenario.workers,
            concurrency=scenario.concurrency,
            timeout=math.inf,
        )  # fmt: skip
        await pool.start(FakeWeights(), 0)
        try:
            yield pool
        finally:
            await pool.stop()

    def supply(self, source: Any, steps: int) -> Supply:
        """What a run with this staleness has."""
        scenario = self.scenario
        order: EndlessOrder[Task] = EndlessOrder(_Tasks(), seed=0, shuffle=False)
        demand = Demand(steps, scenario.prompts, scenario.group, LIMITS)
        if not scenario.staleness:
            return TurnTaking(source, order, demand)
        return Overlapping(source, order, demand, max_staleness=scenario.staleness, tell=lambda groups: None)

    async def run(self, steps: int, warm: int, *, ends: bool = False) -> Outcome:
        """`steps` are counted, after `warm` that aren't. With `ends` the data ends with them, as a run's does; else
        sampling goes on as if more steps followed."""
        scenario, loop = self.scenario, asyncio.get_running_loop()
        last = warm + steps
        async with self.source() as source:
            supply = self.supply(source, last if ends else last + scenario.staleness + 1)
            sums = self._now()
            for step in range(1, last + 1):
                begin = loop.time()
                groups = await supply.take(step)
                taken = loop.time()
                await asyncio.sleep(scenario.update)
                supply.trained(step)
                updated = loop.time()
                await source.update_weights(FakeWeights(step), step)
                supply.weights_are(step)
                done = loop.time()
                if step == warm:
                    sums = self._now()
                elif step > warm:
                    sums.waiting += taken - begin
                    sums.updating += updated - taken
                    sums.handing += done - updated
                    sums.staleness.append(staleness_metrics(groups, step - 1))
            outcome = self._outcome(sums, steps)
            await supply.close()
        return outcome

    def _now(self) -> _Sums:
        return _Sums(
            asyncio.get_running_loop().time(), engines=self._engines(), driver=self.driver.busy
        )  # fmt: skip

    def _engines(self) -> tuple[float, float, float, float]:
        for sampler in self.samplers:
            sampler.engine.settle()
        engines = [sampler.engine for sampler in self.samplers]
        return (
            sum(it.decoding for it in engines), sum(it.standing for it in engines),
            sum(it.placed for it in self.samplers), sum(it.in_tools for it in self.samplers),
        )  # fmt: skip

    def _outcome(self, sums: _Sums, steps: int) -> Outcome:
        scenario = self.scenario
        total = asyncio.get_running_loop().time() - sums.began
        decoding, standing, placed, in_tools = (
            now - then for now, then in zip(self._engines(), sums.engines, strict=True)
        )
        engines = total * len(self.samplers)
        return Outcome(
            step=total / steps,
            episodes_a_second=steps * scenario.prompts * scenario.group / total,
            waiting=sums.waiting / total,
            updating=sums.updating / total,
            handing=sums.handing / total,
            decoding=decoding / engines,
            standing=standing / engines,
            idle=max(1 - (decoding + standing) / engines, 0.0),
            in_tools=in_tools / placed if placed else 0.0,
            driver=(self.driver.busy - sums.driver) / total,
            staleness_mean=sum(it["staleness/mean"] for it in sums.staleness) / steps,
            staleness_max=max(it["staleness/max"] for it in sums.staleness),
            most_in_flight=max(sampler.most_in_flight for sampler in self.samplers),
        )


class _Tasks:
    """So many that none comes twice."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int, /) -> Task:
        return make_task(id=str(index))


def simulate(scenario: Scenario, steps: int, warm: int = 0, *, ends: bool = False) -> Outcome:
    """Run it in virtual time."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Lines warn of answers that take minutes, which here take none.
    try:
        return run_in_virtual_time(Simulation(scenario).run(steps, warm, ends=ends))
    finally:
        logging.disable(before)


async def _round(scenario: Scenario, groups: int) -> float:
    async with Simulation(scenario).source() as source:
        begin = asyncio.get_running_loop().time()
        tasks = [make_task(id=str(number)) for number in range(groups)]
        await source.run(tasks, scenario.group, LIMITS, round_id="r")
        return asyncio.get_running_loop().time() - begin


def round_seconds(scenario: Scenario, groups: int) -> float:
    """For one round of so many groups, with nothing trained."""
    return run_in_virtual_time(_round(scenario, groups))
