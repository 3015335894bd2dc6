"""Cluster-wide limits against a server in the same process: order, leases, lost messages, restarts, disagreement."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from ray.exceptions import RayError

from toolrl.errors import ConfigError, ToolUnavailableError
from toolrl.tools.rate_limits import LimitSpec
from toolrl_plugin_ray import limits as limits_module
from toolrl_plugin_ray.limit_server import LimitServer
from toolrl_plugin_ray.limits import RayLimits
from toolrl_testing.clock import run_in_virtual_time

SPEC = LimitSpec(concurrency=2, lease=10)
ONE = LimitSpec(concurrency=1, lease=10)
DELAY = 0.01


class FakeCluster:
    """Servers as actors: each message takes a moment; `lose` says which are lost, on the way "there" or "back"."""

    def __init__(self) -> None:
        self.server: LimitServer | None = None
        self.recoveries: list[bool] = []
        self.lose: Callable[[str], str | None] = lambda method: None

    def connect(self, *, recovering: bool = False) -> Any:
        self.recoveries.append(recovering)
        if self.server is None:
            self.server = LimitServer(recovering=recovering)
        return _Handle(self, self.server)

    def crash(self) -> None:
        assert self.server is not None
        for client in self.server._clients.values():
            if client.death is not None:
                client.death.cancel()
            for _, permit in client.claims.values():
                permit.cancel()
        self.server = None

    @asynccontextmanager
    async def process(self, **options: Any) -> AsyncIterator[RayLimits]:
        limits = RayLimits(connect=self.connect, join=lambda: False, **options)
        try:
            yield limits
        finally:
            await limits.close()

    async def state(self, name: str = "x") -> dict[str, int]:
        return (await self.server.state()).get(name, {}) if self.server is not None else {}


class _Handle:
    def __init__(self, cluster: FakeCluster, server: LimitServer) -> None:
        self._cluster = cluster
        self._server = server

    def __getattr__(self, method: str) -> Any:
        return _Method(self._cluster, self._server, method)


class _Method:
    def __init__(self, cluster: FakeCluster, server: LimitServer, name: str) -> None:
        self._cluster, self._server, self._name = cluster, server, name

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._call(arguments))

    async def _call(self, arguments: Any) -> Any:
        cluster, lost = self._cluster, self._cluster.lose(self._name)
        await asyncio.sleep(DELAY)
        if lost == "there" or cluster.server is not self._server:
            raise RayError("the actor is unavailable")
        answer = await getattr(self._server, self._name)(*arguments)
        await asyncio.sleep(DELAY)
        if lost == "back" or cluster.server is not self._server:
            raise RayError("the actor died")
        return answer


class Crowd:
    """Counts how many are inside of a limit, over all processes."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.served: list[Any] = []

    async def enter(self, limiter: Any, name: Any = None, seconds: float = 1.0) -> None:
        permit = await limiter.acquire()
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.served.append(name)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside -= 1
            permit.release()
            permit.release()


def run_in_cluster(main: Callable[[FakeCluster], Any]) -> None:
    async def run() -> None:
        cluster = FakeCluster()
        await main(cluster)
        await asyncio.sleep(10 * DELAY)
        if cluster.server is not None:
            assert await cluster.server.state() == {}
            cluster.crash()
        await asyncio.sleep(10 * DELAY)
        assert len(asyncio.all_tasks()) == 1, "nothing is left running"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits_module.ray, "is_initialized", lambda: True)
        run_in_virtual_time(run())


def in_cluster(test: Any) -> Any:
    """The test's first argument is a cluster."""

    def run(**fixtures: Any) -> None:
        run_in_cluster(lambda cluster: test(cluster, **fixtures))

    _, *others = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    run.__name__ = test.__name__
    return run


@in_cluster
async def test_processes_share_a_limit_in_the_order_of_their_requests(cluster: FakeCluster) -> None:
    crowd = Crowd()
    async with cluster.process() as one, cluster.process() as two:
        limiters = [await one.get("x", SPEC), await two.get("x", SPEC)]
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(crowd.enter(limiters[number % 2], number)))
            await asyncio.sleep(3 * DELAY)
        await asyncio.gather(*tasks)
    assert crowd.most == 2
    assert crowd.served == list(range(20))


@in_cluster
async def test_cancelled_at_any_moment_nothing_is_left(cluster: FakeCluster) -> None:
    async with cluster.process() as process:
        limiter = await process.get("x", ONE)
        for step in range(40):
            tasks = [asyncio.create_task(Crowd().enter(limiter, seconds=0.02)) for _ in range(4)]
            await asyncio.sleep(step * 0.004)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)
            assert await cluster.state() == {"users": 1, "held": 0, "waiting": 0}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_whatever_is_lost_and_crashes_the_limit_holds_and_all_are_served(seed: int) -> None:
    chance = random.Random(seed)

    async def main(cluster: FakeCluster) -> None:
        crowd = Crowd()
        cluster.lose = lambda method: chance.choice(["there", "back"]) if chance.random() < 0.1 else None

        async def crashes() -> None:
            while True:
                await asyncio.sleep(chance.uniform(1, 60))
                if cluster.server is not None:
                    cluster.crash()

        async with cluster.process() as one, cluster.process() as two, cluster.process() as three:
            limiters = [await it.get("x", SPEC) for it in (one, two, three)]
            crashing = asyncio.create_task(crashes())
            entries = (crowd.enter(chance.choice(limiters), n, chance.uniform(0, 20)) for n in range(30))
            await asyncio.gather(*entries)
            crashing.cancel()
            cluster.lose = lambda method: None
            await asyncio.sleep(2 * SPEC.lease)
        assert crowd.most <= 2
        assert len(crowd.served) == 30

    run_in_cluster(main)


@in_cluster
async def test_a_restart_keeps_the_limit_and_is_reported(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    crowd, lives = Crowd(), list[str]()
    async with cluster.process(restarted=lives.append) as one, cluster.process() as two:
        limiters = [await one.get("x", SPEC), await two.get("x", SPEC)]
        tasks = [asyncio.create_task(crowd.enter(limiters[n % 2], n, seconds=5)) for n in range(6)]
        await asyncio.sleep(1)
        cluster.crash()
        await asyncio.gather(*tasks)
        # The first two end at 5; the new server grants from about 11 on.
        assert 20 <= asyncio.get_running_loop().time() <= 25
        assert cluster.server is not None
        assert lives == [cluster.server._life]
    assert crowd.most == 2
    assert cluster.recoveries[:2] == [False, False]
    assert set(cluster.recoveries[2:]) == {True}
    assert "the cluster's limits were lost and work again" in caplog.text


@in_cluster
async def test_permits_and_places_of_a_dead_process_are_back_within_the_lease(cluster: FakeCluster) -> None:
    clock = asyncio.get_running_loop().time
    async with cluster.process() as heir, cluster.process() as dead:
        limiters = [await it.get("x", ONE) for it in (dead, heir)]
        await limiters[0].acquire()
        queued = asyncio.create_task(limiters[0].acquire())
        await asyncio.sleep(1)
        waiting = asyncio.create_task(limiters[1].acquire())
        await asyncio.sleep(30)
        assert not waiting.done(), "a living process keeps its permit"
        assert dead._renewing is not None
        dead._renewing.cancel()
        queued.cancel()
        dead._actor = None  # Dead processes send nothing.
        died = clock()
        permit = await waiting
        assert clock() - died <= ONE.lease
        permit.release()


@in_cluster
async def test_a_process_that_was_silent_for_too_long_learns_that_its_permit_is_gone(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.process() as one, cluster.process() as two:
        limiters = [await one.get("x", ONE), await two.get("x", ONE)]
        permit = await limiters[0].acquire()
        assert cluster.server is not None
        await cluster.server.leave(one._client)  # As after a silence.
        other = await limiters[1].acquire()
        await asyncio.sleep(5)
        permit.release()  # Gives no other's back.
        await asyncio.sleep(1)
        assert (await cluster.state())["held"] == 1
        other.release()
    assert "a permit's lease ran out during its call" in caplog.text


@in_cluster
async def test_other_limits_under_one_name_are_an_error_while_they_are_used(cluster: FakeCluster) -> None:
    async with cluster.process() as one, cluster.process() as two:
        await one.get("x", SPEC)
        for process in (one, two):
            with pytest.raises(ConfigError, match=r"'x' is in use with concurrency 2.* asks for concurrency 3"):
                await process.get("x", LimitSpec(concurrency=3, lease=10))
        await (await two.get("x", SPEC)).acquire()
    async with cluster.process() as three:
        await (await three.get("x", LimitSpec(concurrency=3, lease=10))).acquire()


@in_cluster
async def test_calls_that_wait_when_the_limits_are_closed_get_an_error(cluster: FakeCluster) -> None:
    async with cluster.process() as process:
        limiter = await process.get("x", ONE)
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(1)
    with pytest.raises(ToolUnavailableError, match="limits are closed"):
        await waiting


@in_cluster
async def test_a_cluster_that_cannot_be_reached_is_an_error_at_the_start(cluster: FakeCluster) -> None:
    cluster.lose = lambda method: "there"
    async with cluster.process() as process:
        with pytest.raises(ConfigError, match="policy.limit_scope: the limits of the Ray cluster can't be reached"):
            await process.get("x", SPEC)
