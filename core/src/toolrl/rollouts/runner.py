"""Many episodes in flight, gathered into groups.

Every episode is a task of its own on the event loop; a semaphore bounds how many run at once, first come, first served,
so an episode that waits for a slow tool delays no other. The runner knows neither data order nor training: it takes
tasks and returns groups, in the trainer's process and in a worker alike.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolrl.protocols import HoldsStill, RolloutEngine
from toolrl.rollouts.activity import Activity
from toolrl.rollouts.environment import Environment, Limits, pick_environment
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.rollouts.lockstep import Lockstep
from toolrl.rollouts.scoring import scored_together
from toolrl.rollouts.source import FailurePolicy
from toolrl.tools.loop_watch import watching
from toolrl.tools.prints import visible_prints
from toolrl.types import Episode, Group, Task


class Runner(FailurePolicy):
    """Runs groups of episodes. `on_episode` is called with each episode of a finished group, on the event loop."""

    def __init__(
        self,
        engine: RolloutEngine,
        environments: Mapping[str, Environment],
        *,
        concurrency: int = 256,
        seed: int = 0,
        max_error_rate: float = 0.2,
        on_episode: Callable[[Episode], None] | None = None,
        hide: Callable[[str], str] = str,
        lockstep: bool = False,
    ) -> None:
        """`hide` removes secrets from a failure's text. With `lockstep` the samples don't depend on timing; the engine
        must follow `HoldsStill`."""
        self._engine = engine
        self.environments = environments
        self._concurrency = concurrency
        self._seed = seed
        super().__init__(max_error_rate, on_episode)
        self._hide = hide
        self._lockstep = lockstep
        self.activity = Activity()
        self._gate: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    def variant(self, environments: Mapping[str, Environment], name: str) -> Runner:
        """Samples in other environments, with the same seeds; observers get its episodes with ids under `<name>/`."""
        other, notify = copy.copy(self), self._on_episode
        other.environments = environments
        if notify is not None:
            other._on_episode = lambda it: notify(replace(it, id=f"{name}/{it.id}", group=f"{name}/{it.group}"))
        return other

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See SamplesRounds."""
        places = range(len(tasks))
        groups = await self.sample(tasks, places, group_size, limits, round_id=round_id, training=training)
        self.check(groups)
        return groups

    async def sample(
        self,
        tasks: Sequence[Task],
        places: Sequence[int],
        group_size: int,
        limits: Limits,
        *,
        round_id: str,
        training: bool = True,
    ) -> list[Group]:
        """As `run`, of the tasks at these places only, and nothing is checked: the share of one worker of several."""
        plans = [
            self._plan(tasks[number], number, index, round_id, training)
            for number in places
            for index in range(group_size)
        ]
        episodes = await self._round(plans, limits)
        return [
            Group(episodes[start].group, tasks[number], tuple(episodes[start : start + group_size]))
            for number, start in zip(places, range(0, len(episodes), group_size), strict=True)
        ]

    async def group(
        self,
        task: Task,
        number: int,
        group_size: int,
        limits: Limits,
        *,
        round_id: str,
        gate: asyncio.Semaphore,
        training: bool = True,
        ended: Callable[[], None] = lambda: None,
    ) -> Group:
        """The episodes of one task: the caller notifies observers and checks for failures.

        `number` is the group's in its round; `gate` bounds the episodes in flight of all groups that share it; `ended`
        is called when an episode has given its place in it back.
        """
        plans = [self._plan(task, number, index, round_id, training) for index in range(group_size)]
        episodes = await self._episodes(plans, limits, gate, ended=ended)
        return Group(episodes[0].group, task, tuple(episodes))

    def gate(self) -> asyncio.Semaphore:
        """The bound on the episodes in flight, one for all rounds and groups of this event loop."""
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate[0] is not loop:
            self._gate = loop, asyncio.Semaphore(self._concurrency)
        return self._gate[1]

    async def _round(self, plans: Sequence[EpisodePlan], limits: Limits) -> list[Episode]:
        if not self._lockstep:
            return await self._episodes(plans, limits, self.gate(), notify=True)
        going = len(plans)

        def ended() -> None:
            nonlocal going
            going -= 1
            engine.start_if_complete()

        assert isinstance(self._engine, HoldsStill), "assembly rejects others"
        engine = Lockstep(self._engine, lambda: min(going, self._concurrency))
        try:
            return await self._episodes(plans, limits, self.gate(), notify=True, engine=engine, ended=ended)
        finally:
            await engine.end()

    async def _episodes(
        self,
        plans: Sequence[EpisodePlan],
        limits: Limits,
        gate: asyncio.Semaphore,
        *,
        notify: bool = False,
        engine: Lockstep | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        """The episodes of all plans, in order. `notify`: observers get each group when its last episode has ended."""

        async def one(plan: EpisodePlan) -> Episode:
            environment = pick_environment(self.environments, plan.task)
            async with self.activity.place(gate):
                try:
                    run = EpisodeRun(plan, environment, engine or self._engine, limits, hide=self._hide)
                    episode = await run.run()
                    self.activity.note(episode)
                finally:
                    ended()
            return episode

        async def group(started: Sequence[asyncio.Task[Episode]]) -> Sequence[Episode]:
            episodes: Sequence[Episode] = await asyncio.gather(*started)
            environment = pick_environment(self.environments, episodes[0].task)
            if environment.scores_groups:  # They hold no place meanwhile: other episodes go on.
                episodes = await scored_together(episodes, environment.rewards, self._hide)
            if notify:
                self.notify_episodes(episodes)
            return episodes

        try:
            with watching(), visible_prints():
                async with asyncio.TaskGroup() as scope:
                    started: dict[str, list[asyncio.Task[Episode]]] = {}
                    for plan in plans:
                        started.setdefault(plan.group, []).append(scope.create_task(one(plan)))
                    groups = [scope.create_task(group(tasks)) for tasks in started.values()]
        except BaseExceptionGroup as errors:
            # An exception that leaves an episode is a bug or a mistake in the data; the others repeat the first.
            raise errors.exceptions[0] from None
        return [episode for task in groups for episode in task.result()]

    def _plan(self, task: Task, number: int, index: int, round_id: str, training: bool) -> EpisodePlan:
        group = f"{round_id}/{number}/{task.id}"
        return EpisodePlan(task, group, index, _seed(self._seed, group, index), training)


def _seed(run_seed: int, group: str, index: int) -> int:
    digest = hashlib.blake2b(f"{run_seed}/{group}/{index}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
