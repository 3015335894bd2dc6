"""What a simulated worker is made of: an engine that decodes its sequences side by side, and episodes that take turns
between it and their tools. Nothing is computed; only time passes, on the clock of the running event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from toolrl.rollout.environment import Limits
from toolrl.types import Episode, Group, Task


@dataclass(frozen=True)
class Costs:
    """Seconds of the driver, which does one thing at a time."""

    report: float = 0.0
    """For a report of a worker."""
    episode: float = 0.0
    """For an episode that a report brings: read, written down."""
    order: float = 0.0
    """For sending groups to a worker."""
    deal: float = 0.0
    """For choosing a worker for a group."""


@dataclass(frozen=True)
class Tool:
    """Times that calls take: log-normal with this mean, spread and cap."""

    mean: float
    sigma: float = 0.8
    cap: float = math.inf

    def seconds(self, chance: random.Random) -> float:
        if not self.mean:
            return 0.0
        drawn = chance.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(drawn, self.cap)


@dataclass(frozen=True)
class Scenario:
    """A run to simulate. All times are seconds."""

    workers: int
    """Engines; ranks where it is colocated."""
    concurrency: int
    """Episodes in flight of each."""
    prompts: int
    group: int
    turns: int
    turn_tokens: float
    """Sampled in a turn, in the mean."""
    token: Callable[[int], float]
    """For a token of each of so many sequences of an engine."""
    tool: Tool
    update: float
    """Of a step, groups to all ranks included."""
    spread: float = 0.0
    """Sigma of the log-normal lengths of turns."""
    publish: float = 0.0
    """To make weights ready, while engines work."""
    receive: float = 0.0
    """To bring weights to a worker and write them, while its engine stands still."""
    staleness: int = 0
    """rollout.max_staleness."""
    colocated: bool = False
    costs: Costs = Costs()
    message: float = 0.0
    """For a message to arrive."""
    seed: int = 0


class Driver:
    """Does one thing at a time, in the order in which it comes."""

    def __init__(self) -> None:
        self.busy = 0.0
        self._free = 0.0

    async def take(self, seconds: float) -> None:
        if not seconds:
            return
        now = asyncio.get_running_loop().time()
        self.busy += seconds
        self._free = max(self._free, now) + seconds
        await asyncio.sleep(self._free - now)


class Engine:
    """Decodes all its sequences side by side."""

    def __init__(self, token: Callable[[int], float], most: int) -> None:
        """`most` is how many sequences there may be at once."""
        self._token = [token(max(count, 1)) for count in range(most + 1)]
        self._loop = asyncio.get_running_loop()
        self._made = 0.0
        """Tokens that a sequence which was there from the start would have."""
        self._then = self._loop.time()
        self._numbers = itertools.count()
        self._sequences: list[tuple[float, int, Callable[[], None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        self.decoding = self.standing = 0.0
        """Seconds."""

    def generate(self, tokens: float, then: Callable[[], None]) -> None:
        """Sample so many tokens for a sequence more."""
        self.settle()
        heapq.heappush(self._sequences, (self._made + tokens, next(self._numbers), then))
        self._aim()

    async def hold(self, seconds: float) -> None:
        """Stand still for so long."""
        self.settle()
        self._held += 1
        await asyncio.sleep(seconds)
        self.settle()
        self._held -= 1
        self._aim()

    def settle(self) -> None:
        """Bring the figures up to date: of all that passed since they were, nothing changed."""
        now = self._loop.time()
        passed, self._then = now - self._then, now
        if self._held:
            self.standing += passed
        elif self._sequences:
            self.decoding += passed
            self._made += passed / self._token[len(self._sequences)]

    def _aim(self) -> None:
        """Wake when the next sequence ends, or before: a timer that is too early is followed by another."""
        if not self._sequences or self._held:
            return
        left = max(self._sequences[0][0] - self._made, 0.0) * self._token[len(self._sequences)]
        when = self._then + left
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._end)

    def _end(self) -> None:
        self._timer = None
        self.settle()
        while not self._held and self._sequences and self._sequences[0][0] <= self._made + 1e-6:
            heapq.heappop(self._sequences)[2]()
        self._aim()


class Sampler:
    """A worker's runner: episodes that take their time. It has `Runner.group` and `Runner.gate`."""

    def __init__(self, scenario: Scenario, version: int) -> None:
        self.scenario = scenario
        self.version = version
        self.engine = Engine(scenario.token, scenario.concurrency)
        self.in_flight = self.most_in_flight = 0
        self.placed = self.in_tools = 0.0
        """Seconds of episodes."""
        self._gate = asyncio.Semaphore(scenario.concurrency)

    def gate(self) -> asyncio.Semaphore:
        return self._gate

    async def group(
        self, task: Task, number: int, group_size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore,
        training: bool = True, ended: Callable[[], None] = lambda: None,
    ) -> Group:  # fmt: skip
        """As `Runner.group`."""
        name = f"{round_id}/{number}/{task.id}"
        going = (self._episode(task, name, index, gate, ended) for index in range(group_size))
        return Group(name, task, tuple(await asyncio.gather(*going)))

    async def _episode(
        self, task: Task, group: str, index: int, gate: asyncio.Semaphore, ended: Callable[[], None]
    ) -> Episode:
        loop = asyncio.get_running_loop()
        async with gate:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            first, began = self.version, loop.time()
            try:
                waited = await self._turns(random.Random(f"{self.scenario.seed}/{task.id}/{index}"))
                self.in_tools += waited
            finally:
                self.in_flight -= 1
                self.placed += loop.time() - began
                ended()
        return _episode(task, group, index, first, self.version)

    def _turns(self, chance: random.Random) -> asyncio.Future[float]:
        """All turns of an episode; the seconds that its tools took. Callbacks, as there are very many of them."""
        scenario, engine, loop = self.scenario, self.engine, asyncio.get_running_loop()
        done: asyncio.Future[float] = loop.create_future()
        left, waited = scenario.turns, 0.0

        def say() -> None:
            tokens = scenario.turn_tokens
            if scenario.spread:
                tokens *= chance.lognormvariate(-(scenario.spread**2) / 2, scenario.spread)
            engine.generate(tokens, said)

        def said() -> None:
            nonlocal left, waited
            left -= 1
            if done.cancelled():
                return
            if not left:
                done.set_result(waited)
                return
            seconds = scenario.tool.seconds(chance)
            waited += seconds
            loop.call_later(seconds, say)

        say()
        return done


def _episode(task: Task, group: str, index: int, first: int, last: int) -> Episode:
    """Two tokens, of the versions that sampled the first and the last."""
    return Episode(
        f"{group}#{index}", task, "default", group, index, ids=(1, 2), loss_mask=(1, 1), logprobs=(0.0, 0.0),
        weight_versions=(first, last), prompt_length=0, turns=(), messages=(), stop_reason="answer",
    )  # fmt: skip
