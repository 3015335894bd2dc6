"""Groups dealt to workers, without Ray: whoever dies and whenever, each group comes back once and whole."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.errors import ConfigError, DataError, EngineError, RunStoppedError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.source import FailurePolicy
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Episode, Group, Task
from toolrl_plugin_ray.messages import WeightUpdate, WorkerSpec
from toolrl_plugin_ray.rollout_worker import RolloutWorker
from toolrl_plugin_ray.worker_pool import WorkerPool
from toolrl_plugin_ray.worker_supervisor import WorkerLostError, WorkerSupervisor
from toolrl_testing.clock import run_in_virtual_time
from toolrl_testing.fakes import FakeChatFormat, FakeParser, FakeWeights, ScriptedEngine, make_task

LIMITS = Limits(max_turn_tokens=50, max_episode_tokens=500)
DELAY = 0.001
TEXT = "abcdefgh"


class Engine(ScriptedEngine):
    """A text that takes as long as its task's number of seconds says."""

    async def generate(self, prompt: Any, *arguments: Any, **options: Any) -> Any:
        seconds = float(self._chat.decode(prompt).text.split("s=")[1].split("<")[0])
        await asyncio.sleep(seconds)
        return await super().generate(prompt, *arguments, **options)


class Scripted:
    """A replica without a model."""

    def __init__(self, concurrency: int) -> None:
        self.engine = Engine(lambda prompt: TEXT)
        environments = {name: Environment(name, FakeParser(), FakeChatFormat(), ToolBox([])) for name in ("a", "b")}
        self.runner = Runner(self.engine, environments, concurrency=concurrency)

    async def load(self, update: WeightUpdate) -> None:
        if update.version == 666:
            raise EngineError("these weights are others")
        await self.engine.update_weights(FakeWeights(update.version), update.version)

    def status(self) -> dict[str, Any]:
        return {"most": self.engine.most_at_once}


@asynccontextmanager
async def scripted(spec: WorkerSpec, update: WeightUpdate) -> AsyncIterator[Scripted]:
    if spec.device == "broken":
        raise ConfigError("this worker can't be built", where="environments.default")
    made = Scripted(spec.loaded.config.rollout.concurrency)
    await made.load(update)
    yield made


class ScriptedWorker(RolloutWorker):
    build = staticmethod(scripted)

    def log_to(self, path: Any) -> None:
        """This process is the test's."""


class Process:
    """A worker's process: each message takes a moment and is pickled, and dead it answers nothing."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker = ScriptedWorker()
        self.dead = asyncio.Event()
        self.mute = False
        self.unreached = ""
        """A method whose messages are lost."""
        self.dealt: list[int] = []

    def call(self, method: str, *arguments: Any) -> Awaitable[Any]:
        return self._call(method, arguments)

    async def _call(self, method: str, arguments: Any) -> Any:
        arguments = pickle.loads(pickle.dumps(arguments))
        if method == self.unreached:
            await asyncio.sleep(DELAY)
            raise WorkerLostError("it can't be reached")
        if method == "sample":
            self.dealt.append(pickle.loads(arguments[0]).key)
        answer = asyncio.create_task(self._answer(method, arguments))
        dead = asyncio.create_task(self.dead.wait())
        try:
            await asyncio.wait([answer, dead], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, dead):
                task.cancel()
        if self.dead.is_set():
            raise WorkerLostError("it was killed")
        return answer.result()

    async def _answer(self, method: str, arguments: Any) -> Any:
        await asyncio.sleep(DELAY)
        answer = await getattr(self.worker, method)(*arguments) if not self.mute else None
        await asyncio.sleep(DELAY)
        if self.mute:
            await asyncio.Event().wait()
        return pickle.loads(pickle.dumps(answer))

    def kill(self) -> None:
        self.dead.set()
        for task in self.worker._groups.values():
            assert task is not None
            task.cancel()


class FakeBroadcast:
    """Sends each worker a version's number."""

    async def publish(self, weights: Any, version: int) -> WeightUpdate:
        await asyncio.sleep(DELAY)
        return WeightUpdate(version)

    async def send(self, update: WeightUpdate, workers: Sequence[WorkerSupervisor]) -> None:
        for found in await asyncio.gather(*(it.update(update) for it in workers), return_exceptions=True):
            if isinstance(found, Exception) and not isinstance(found, WorkerLostError):
                raise found

    @asynccontextmanager
    async def send_to_one(self, update: WeightUpdate) -> AsyncIterator[WeightUpdate]:
        yield update


class Farm:
    """A pool and its processes."""

    def __init__(self, workers: int = 2, concurrency: int = 4, **options: Any) -> None:
        self.processes: list[Process] = []
        self.told: list[Episode] = []
        self.device = "cpu"
        rollout = {"concurrency": concurrency}
        config = Config.model_validate({"model": {"path": "m"}, "environments": {"a": {}}, "rollout": rollout})
        spec = WorkerSpec(0, LoadedConfig(config, {}, "c.yaml"), "m", "float32", "", ".", ".")
        self.pool = WorkerPool(
            self.spawn,
            lambda number: replace(spec, number=number, device=self.device),
            FakeBroadcast(),
            FailurePolicy(0.2, self.told.append),
            workers=workers,
            concurrency=concurrency,
            **options,
        )

    def spawn(self, number: int) -> Process:
        self.processes.append(Process(number))
        return self.processes[-1]

    def living(self, number: int) -> Process:
        return next(it for it in reversed(self.processes) if it.number == number)

    async def group(self, seconds: float = 1.0, name: str = "t", size: int = 2) -> Group:
        return await self.pool.group(task(name, seconds), 0, size, LIMITS, round_id="train-1", gate=self.pool.gate())


def task(name: str = "t", seconds: float = 1.0, environment: str = "a") -> Task:
    return make_task(f"s={seconds}", id=name, environment=environment)


def run_farm(main: Callable[[Farm], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        made = Farm(**options)
        try:
            await made.pool.start(FakeWeights(), 0)
            await main(made)
        finally:
            await made.pool.stop()
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == 1, "nothing is left running"

    run_in_virtual_time(run())


def in_farm(**options: Any) -> Callable[[Any], Any]:
    """The test's first argument is a farm with these options, which is started."""

    def decorate(test: Any) -> Any:
        def run(**fixtures: Any) -> None:
            run_farm(lambda farm: test(farm, **fixtures), **options)

        _, *others = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        run.__name__ = test.__name__
        return run

    return decorate


@in_farm()
async def test_groups_are_those_of_the_runner_in_the_order_of_tasks(farm: Farm) -> None:
    tasks = [task(f"t{number}", seconds=(7 - number) / 10) for number in range(7)]

    groups = await farm.pool.run(tasks, 3, LIMITS, round_id="train-1")
    own = await Scripted(4).runner.run(tasks, 3, LIMITS, round_id="train-1")

    def timeless(episode: Episode) -> Episode:
        return replace(episode, seconds=0, metrics={}, trajectories=(replace(episode.main, turns=()),))

    def plain(found: list[Group]) -> list[Group]:
        return [replace(it, episodes=tuple(map(timeless, it.episodes))) for it in found]

    assert plain(groups) == plain(own)
    assert sorted(it.id for it in farm.told) == sorted(it.id for group in own for it in group.episodes)


@in_farm()
async def test_no_worker_has_more_in_flight_than_it_may_and_all_are_busy(farm: Farm) -> None:
    begin = asyncio.get_running_loop().time()
    await asyncio.gather(*(farm.group(name=f"t{number}") for number in range(16)))
    # 32 episodes of a second in two workers of four places.
    assert 4.0 <= asyncio.get_running_loop().time() - begin < 4.2
    assert [it.worker._replica.engine.most_at_once for it in farm.processes] == [4, 4]  # type: ignore[union-attr]
    assert [len(it.dealt) for it in farm.processes] == [8, 8]


@in_farm()
async def test_a_dead_workers_groups_start_again_and_it_is_replaced(farm: Farm) -> None:
    going = [asyncio.create_task(farm.group(name=f"t{number}", size=4)) for number in range(4)]
    await asyncio.sleep(0.5)
    farm.living(0).kill()
    groups = await asyncio.gather(*going)
    assert Counter(group.task.id for group in groups) == Counter(f"t{number}" for number in range(4))
    await asyncio.sleep(1)
    found = farm.pool.metrics()
    assert found == {"cluster/workers": 2.0, "cluster/restarted_workers": 1.0, "cluster/restarted_groups": 1.0}
    assert farm.pool.metrics()["cluster/restarted_workers"] == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_whoever_dies_and_whenever_each_group_comes_once(seed: int) -> None:
    chance = random.Random(seed)

    async def main(farm: Farm) -> None:
        async def killer() -> None:
            while True:
                await asyncio.sleep(chance.expovariate(1.0))
                farm.living(chance.randrange(3)).kill()

        killing = asyncio.create_task(killer())
        rounds = []
        for number in range(3):
            tasks = [task(f"t{row}", seconds=chance.random()) for row in range(chance.randrange(1, 9))]
            groups = await farm.pool.run(tasks, chance.randrange(1, 5), LIMITS, round_id=f"train-{number}")
            await farm.pool.update_weights(FakeWeights(number + 1), number + 1)
            assert [group.task.id for group in groups] == [it.id for it in tasks]
            for group in groups:
                versions = {v for it in group.episodes for v in it.weight_versions if v >= 0}
                assert versions == {number}, "one that was replaced has the current weights"
            rounds += groups
        killing.cancel()
        ids = [it.id for group in rounds for it in group.episodes]
        assert sorted(it.id for it in farm.told) == sorted(ids)
        assert len(set(ids)) == len(ids)

    run_farm(main, workers=3, restarts=10**6)


@in_farm(restarts=2)
async def test_a_worker_that_dies_again_and_again_ends_the_run(farm: Farm) -> None:
    going = asyncio.create_task(farm.group(100.0))
    with pytest.raises(RunStoppedError) as caught:
        while True:
            await asyncio.sleep(0.2)
            farm.living(0).kill()
            farm.pool._check_broken()
    assert "rollout worker 0 died 3 times in a row, at last: it was killed" in caught.value.message
    with pytest.raises(RunStoppedError):
        await going
    with pytest.raises(RunStoppedError):
        await farm.group()


@in_farm(restarts=2)
async def test_a_group_that_every_worker_dies_of_ends_the_run(farm: Farm) -> None:
    async def killer() -> None:
        while True:
            await asyncio.sleep(0.5)
            await asyncio.gather(*(farm.group(0.0, "fine") for _ in range(2)))
            for process in farm.processes:
                if process.worker._groups:
                    process.kill()

    killing = asyncio.create_task(killer())
    with pytest.raises(RunStoppedError, match="3 rollout workers died while they sampled train-1/0/deadly"):
        await farm.group(100.0, "deadly", size=1)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)


@in_farm(timeout=100.0)
async def test_a_worker_that_falls_silent_is_told_of_and_replaced(farm: Farm, caplog: pytest.LogCaptureFixture) -> None:
    going = [asyncio.create_task(farm.group(1.0, f"t{number}", size=4)) for number in range(2)]
    await asyncio.sleep(0.5)
    farm.living(1).mute = True
    await asyncio.gather(*going)
    assert 100 < asyncio.get_running_loop().time() < 110
    assert farm.pool.metrics()["cluster/restarted_groups"] == 1.0
    assert "rollout worker 1 hasn't answered 'poll' for 30 s; given up after 100 s" in caplog.text
    assert "rollout worker 1 died (it didn't answer 'poll' for 100 seconds); its groups start again" in caplog.text


@pytest.mark.parametrize("method", ["sample", "take_weights", "drop"])
@in_farm()
async def test_a_worker_that_one_message_did_not_reach_is_replaced(farm: Farm, method: str) -> None:
    going = [asyncio.create_task(farm.group(1.0, f"t{number}", size=4)) for number in range(4)]
    farm.living(0).unreached = method
    await asyncio.sleep(0.5)
    if method == "drop":
        going[0].cancel()
    await farm.pool.update_weights(FakeWeights(1), 1)
    groups = await asyncio.gather(*going, return_exceptions=True)
    assert sum(isinstance(it, Group) for it in groups) == 4 - (method == "drop")
    await asyncio.sleep(1)
    assert len(farm.processes) == 3
    assert [it.weights.version for it in farm.pool._workers if it.weights] == [1, 1]


@pytest.mark.parametrize("method", ["stop", "drop"])
@in_farm()
async def test_a_worker_waits_for_its_episodes_to_leave_their_tools(farm: Farm, method: str) -> None:
    ended: list[str] = []

    async def generate(*arguments: Any, **options: Any) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
            ended.append("episode")

    worker: Any = farm.living(0).worker
    worker._replica.engine.generate = generate
    worker._stack.callback(ended.append, "tools")
    going = asyncio.create_task(farm.group())
    await asyncio.sleep(0.5)
    await worker.drop(*worker._groups) if method == "drop" else await worker.stop()
    assert ended == ["episode", "episode", "tools"][: 2 + (method == "stop")]
    await asyncio.wait([going])


def test_what_keeps_a_worker_from_starting_is_raised_as_it_is() -> None:
    async def run() -> None:
        farm = Farm()
        farm.device = "broken"
        with pytest.raises(ConfigError, match="this worker can't be built") as caught:
            await farm.pool.start(FakeWeights(), 0)
        assert caught.value.where == "environments.default"
        await farm.pool.stop()

    run_in_virtual_time(run())


@in_farm()
async def test_what_leaves_a_group_is_raised_where_it_was_asked_for(farm: Farm) -> None:
    with pytest.raises(DataError, match="asks for environment 'c'; the config has: a, b"):
        await farm.pool.run([task(), task(environment="c")], 2, LIMITS, round_id="train-1")
    assert len((await farm.group()).episodes) == 2


@in_farm()
async def test_a_task_that_cannot_be_sent_is_named(farm: Farm) -> None:
    strange = replace(task("odd"), extra={"lock": threading.Lock(), "function": lambda: None})
    with pytest.raises(RunStoppedError, match=r"train-1/0/odd can't be sent to a rollout worker: "):
        await farm.pool.run([strange], 2, LIMITS, round_id="train-1")
    assert len((await farm.group()).episodes) == 2


@in_farm()
async def test_a_starting_worker_gets_weights_that_came_meanwhile(farm: Farm) -> None:
    farm.living(0).kill()
    await asyncio.sleep(0)
    await farm.pool.update_weights(FakeWeights(7), 7)
    await asyncio.sleep(1)
    assert [it.weights.version for it in farm.pool._workers if it.weights] == [7, 7]
    assert [farm.living(n).worker._replica.engine.version for n in (0, 1)] == [7, 7]  # type: ignore[union-attr]


@in_farm()
async def test_what_workers_tell_of_restarts_is_in_the_metrics_once(farm: Farm) -> None:
    for number in range(2):
        replica = farm.living(number).worker._replica
        told = [("limits", "second life"), ("servers", f"of {number}")]
        replica.status = lambda told=told: {"restarted": told}  # type: ignore
    for _ in range(2):
        await asyncio.gather(*(farm.group(name=str(it)) for it in range(8)))
    found = farm.pool.metrics()
    assert found["cluster/restarted_limits"] == 1.0
    assert found["cluster/restarted_servers"] == 2.0
    await farm.group()
    assert "cluster/restarted_limits" not in farm.pool.metrics()
    assert farm.pool.status()["restarted"] == {"limits": 1, "servers": 2}, "all of them since the start"


@in_farm()
async def test_status_says_what_each_worker_does(farm: Farm) -> None:
    going = asyncio.create_task(farm.group())
    await asyncio.sleep(0.1)
    first, second = farm.pool.status()["workers"]
    assert (first["state"], first["groups"], first["episodes"], first["weights"]) == ("ready", 1, 2, 0)
    assert (second["state"], second["groups"], second["episodes"]) == ("ready", 0, 0)
    assert isinstance(first["pid"], int)
    await going
