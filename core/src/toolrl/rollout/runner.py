"""Many episodes in flight, gathered into groups.

Every episode is a task of its own on the event loop; a semaphore bounds how many run at once, first come, first served,
so an episode that waits for a slow tool delays nobody. The runner knows neither data order nor training: it is handed
tasks and gives back groups, in one process or in a worker alike.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from toolrl.errors import RunStoppedError
from toolrl.protocols import HoldsStill, RolloutEngine
from toolrl.rollout.environment import Environment, Limits, pick_environment
from toolrl.rollout.episode import EpisodePlan, EpisodeRun
from toolrl.rollout.garbage import collected_rarely
from toolrl.rollout.lockstep import Lockstep
from toolrl.rollout.scoring import scored_together
from toolrl.types import Episode, Group, Task

_Tell = Callable[[Episode], None]

_FEWEST_CRASHES = 8
"""Fewer say nothing of a tool's health."""


class Runner:
    """Runs groups of episodes. `on_episode` is called with each finished episode, on the event loop."""

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
        """`hide` takes secrets out of a failure's text before anybody sees it. With `lockstep` what is sampled doesn't
        depend on how long anything takes; the engine must be one that `HoldsStill`."""
        self._engine = engine
        self._environments = environments
        self._concurrency = concurrency
        self._seed = seed
        self._max_error_rate = max_error_rate
        self._on_episode = on_episode
        self._hide = hide
        self._lockstep = lockstep
        self._gate: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """`group_size` episodes of each task; groups in the order of `tasks`.

        `round_id` makes group names and seeds unique in the run ("train-12", "eval-12"). Raises RunStoppedError where
        more than max_error_rate of the episodes failed; episodes in flight are cancelled when this is cancelled.
        """
        plans = [
            self._plan(task, number, index, round_id, training)
            for number, task in enumerate(tasks)
            for index in range(group_size)
        ]
        episodes = await self._round(plans, limits)
        groups = [
            Group(episodes[start].group, task, tuple(episodes[start : start + group_size]))
            for task, start in zip(tasks, range(0, len(episodes), group_size), strict=True)
        ]
        self.check(groups)
        return groups

    async def group(
        self, task: Task, number: int, group_size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        """The episodes of one task, for who keeps many groups in flight: nobody is told of them and nothing is checked.

        `number` is the group's in its round; `gate` bounds the episodes in flight of all groups that share it.
        """
        plans = [self._plan(task, number, index, round_id, True) for index in range(group_size)]
        episodes = await self._all(plans, limits, gate, None)
        return Group(episodes[0].group, task, tuple(episodes))

    def gate(self) -> asyncio.Semaphore:
        """The bound on the episodes in flight, one for all rounds and groups of this event loop."""
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate[0] is not loop:
            self._gate = loop, asyncio.Semaphore(self._concurrency)
        return self._gate[1]

    def tell(self, groups: Iterable[Group]) -> None:
        """Tell of the episodes of these groups, as `run` does of its own."""
        if self._on_episode is not None:
            for group in groups:
                for episode in group.episodes:
                    self._on_episode(episode)

    async def _round(self, plans: Sequence[EpisodePlan], limits: Limits) -> list[Episode]:
        if not self._lockstep:
            return await self._all(plans, limits, self.gate(), self._on_episode)
        going = len(plans)

        def ended() -> None:
            nonlocal going
            going -= 1
            engine.look()

        assert isinstance(self._engine, HoldsStill), "assembly refuses others"
        engine = Lockstep(self._engine, lambda: min(going, self._concurrency))
        try:
            return await self._all(plans, limits, self.gate(), self._on_episode, engine, ended)
        finally:
            await engine.end()

    async def _all(
        self,
        plans: Sequence[EpisodePlan],
        limits: Limits,
        gate: asyncio.Semaphore,
        tell: _Tell | None,
        engine: Lockstep | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        async def one(plan: EpisodePlan) -> Episode:
            environment = pick_environment(self._environments, plan.task)
            async with gate:
                try:
                    waiting = nullcontext if engine is None else engine.waiting
                    run = EpisodeRun(
                        plan, environment, engine or self._engine, limits, hide=self._hide, waiting=waiting
                    )
                    episode = await run.run()
                finally:
                    ended()
            if tell is not None and not environment.scores_groups:
                tell(episode)
            return episode

        try:
            with collected_rarely():
                return await self._gathered(plans, one, tell)
        except BaseExceptionGroup as group:
            # What leaves an episode is a bug or a mistake in the data: the first says it, the others say it again.
            raise group.exceptions[0] from None

    async def _gathered(
        self,
        plans: Sequence[EpisodePlan],
        one: Callable[[EpisodePlan], Coroutine[Any, Any, Episode]],
        tell: _Tell | None,
    ) -> list[Episode]:
        """The episodes of all plans, in order. Raises what leaves an episode, in a group."""
        async with asyncio.TaskGroup() as scope:
            started: dict[str, list[asyncio.Task[Episode]]] = {}
            for plan in plans:
                started.setdefault(plan.group, []).append(scope.create_task(one(plan)))
            groups = [scope.create_task(self._together(tasks, tell)) for tasks in started.values()]
        return [episode for task in groups for episode in task.result()]

    async def _together(self, started: Sequence[asyncio.Task[Episode]], tell: _Tell | None) -> Sequence[Episode]:
        """The episodes of a group when its last one has ended, scored by those rewards that have to see all of it. They
        hold no place meanwhile: other episodes go on."""
        episodes = await asyncio.gather(*started)
        environment = pick_environment(self._environments, episodes[0].task)
        if not environment.scores_groups:
            return episodes
        scored = await scored_together(episodes, environment.rewards, self._hide)
        for episode in scored:
            if tell is not None:
                tell(episode)
        return scored

    def _plan(self, task: Task, number: int, index: int, round_id: str, training: bool) -> EpisodePlan:
        group = f"{round_id}/{number}/{task.id}"
        return EpisodePlan(task, group, index, _seed(self._seed, group, index), training)

    def check(self, groups: Sequence[Group]) -> None:
        """Raises RunStoppedError where more than max_error_rate of the episodes failed, or of their calls crashed."""
        episodes = [episode for group in groups for episode in group.episodes]
        self._check_crashes(episodes)
        failures = [episode.failure for episode in episodes if episode.failure is not None]
        if len(failures) <= self._max_error_rate * len(episodes):
            return
        (fault, component), count = Counter((f.fault, f.component) for f in failures).most_common(1)[0]
        example = next(f for f in failures if (f.fault, f.component) == (fault, component))
        place = fault if component == fault else f"{fault} ({component})"
        raise RunStoppedError(
            f"{len(failures)} of {len(episodes)} episodes failed, more than rollout.max_error_rate "
            f"{self._max_error_rate:g} allows; {count} of them in the {place}: {example.message}",
            hint="The episodes with their tracebacks are in the run folder. Mend the cause, then run it again: "
            "with --resume to go on (train, sft), else with --overwrite.",
        )

    def _check_crashes(self, episodes: Sequence[Episode]) -> None:
        """A crash of a tool is text for the model and fails no episode; a dead tool would train on nothing but that."""
        records = [record for episode in episodes for record in episode.calls]
        crashed = [record for record in records if record.result.error == "crash"]
        if len(crashed) < _FEWEST_CRASHES or len(crashed) <= self._max_error_rate * len(records):
            return
        name, count = Counter(record.call.name for record in crashed).most_common(1)[0]
        raise RunStoppedError(
            f"{len(crashed)} of {len(records)} tool calls crashed, more than rollout.max_error_rate "
            f"{self._max_error_rate:g} allows; {count} of them in {name!r}",
            hint="The log has the tool's first traceback. Mend the tool, or have it raise ToolError for what the model "
            "should read; then run it again: with --resume to go on (train, sft), else with --overwrite.",
        )


def _seed(run_seed: int, group: str, index: int) -> int:
    digest = hashlib.blake2b(f"{run_seed}/{group}/{index}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
