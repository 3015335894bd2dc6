"""A process's line to the cluster's limits, against a server in the same process: lost messages, restarts, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.cluster.limit_server import LimitServer
from toolrl.errors import ConfigError, ToolUnavailableError
from toolrl.tools.rate_limits import LimitSpec
from toolrl_testing.clock import run_in_virtual_time

pytest.importorskip("ray", reason="the line to the cluster needs ray: pip install 'toolrl[cluster]'")

from ray.exceptions import RayError

from toolrl.cluster import limiter as limiter_module
from toolrl.cluster.limiter import RayLimits

SPEC = LimitSpec(concurrency=2, lease=10)
DELAY = 0.01


class FakeCluster:
    """Servers as actors: each message takes a moment, and `lose` says which are lost, on the way there or back."""

    def __init__(self) -> None:
        self.server: LimitServer | None = None
        self.messages: list[str] = []
        self.recoveries: list[bool] = []
        self.lose: Callable[[str], str | None] = lambda method: None

    def connect(self, *, recovering: bool = False) -> Any:
        self.recoveries.append(recovering)
        if self.server is None:
            self.server = LimitServer(recovering=recovering)
        return _Handle(self, self.server)

    def crash(self) -> None:
        assert self.server is not None
        if self.server._watch is not None:
            self.server._watch.cancel()
        for client in self.server._clients.values():
            for claim in client.claims.values():
                if claim.waiting is not None:
                    claim.waiting.cancel()
        self.server = None

    @asynccontextmanager
    async def line(self) -> AsyncIterator[RayLimits]:
        line = RayLimits(self.connect, join=lambda: False)
        try:
            yield line
        finally:
            await line.close()


class _Handle:
    def __init__(self, cluster: FakeCluster, server: LimitServer) -> None:
        self._cluster = cluster
        self._server = server

    def __getattr__(self, method: str) -> Any:
        return _Method(self._cluster, self._server, method)


class _Method:
    def __init__(self, cluster: FakeCluster, server: LimitServer, method: str) -> None:
        self._cluster, self._server, self._method = cluster, server, method

    async def remote(self, *arguments: Any) -> Any:
        cluster = self._cluster
        cluster.messages.append(self._method)
        lost = cluster.lose(self._method)
        await asyncio.sleep(DELAY)
        if lost == "there" or cluster.server is not self._server:
            raise RayError("the actor is unavailable")
        answer = await getattr(self._server, self._method)(*arguments)
        await asyncio.sleep(DELAY)
        if lost == "back" or cluster.server is not self._server:
            raise RayError("the actor died")
        return answer


@pytest.fixture(autouse=True)
def _always_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module.ray, "is_initialized", lambda: True)


def in_cluster(main: Callable[[FakeCluster], Any]) -> None:
    async def run() -> None:
        cluster = FakeCluster()
        await main(cluster)
        if cluster.server is not None:
            assert await cluster.server.state() == {}
            cluster.crash()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    run_in_virtual_time(run())


class Crowd:
    """Who is inside of a limit, over all lines."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
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


def test_two_processes_share_a_limit_and_messages_are_few() -> None:
    async def main(cluster: FakeCluster) -> None:
        crowd = Crowd()
        async with cluster.line() as one, cluster.line() as two:
            limiters = [await one.get("x", SPEC), await two.get("x", SPEC)]
            await asyncio.gather(*(crowd.enter(limiters[n % 2], n) for n in range(20)))
        assert crowd.most == 2
        assert sorted(crowd.served) == list(range(20))
        # Twenty wants of one moment are two messages; nobody asks again and again.
        assert cluster.messages.count("update") <= 25
        assert cluster.messages.count("poll") <= 30

    in_cluster(main)


def test_who_comes_first_is_served_first() -> None:
    async def main(cluster: FakeCluster) -> None:
        crowd = Crowd()
        async with cluster.line() as one, cluster.line() as two:
            limiters = [await line.get("x", LimitSpec(concurrency=1, lease=10)) for line in (one, two)]
            tasks = []
            for number in range(10):
                tasks.append(asyncio.create_task(crowd.enter(limiters[number % 2], number)))
                await asyncio.sleep(0.1)
            await asyncio.gather(*tasks)
        assert crowd.served == list(range(10))

    in_cluster(main)


def test_cancelled_at_any_moment_nothing_is_left() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as line:
            limiter = await line.get("x", LimitSpec(concurrency=1, lease=10))
            for step in range(40):
                tasks = [asyncio.create_task(Crowd().enter(limiter, seconds=0.02)) for _ in range(4)]
                await asyncio.sleep(step * 0.004)
                for task in tasks[1:]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.sleep(0.1)
                assert cluster.server is not None
                assert (await cluster.server.state())["x"] == {"users": 1, "held": 0, "waiting": 0}

    in_cluster(main)


@pytest.mark.parametrize("where", ["there", "back"])
@pytest.mark.parametrize("method", ["update", "poll"])
def test_a_lost_message_loses_no_turn(method: str, where: str) -> None:
    async def main(cluster: FakeCluster) -> None:
        crowd, seen = Crowd(), [0]

        def lose(name: str) -> str | None:
            seen[0] += name == method
            return where if name == method and seen[0] % 3 == 0 else None

        cluster.lose = lose
        async with cluster.line() as one, cluster.line() as two:
            limiters = [await one.get("x", SPEC), await two.get("x", SPEC)]
            await asyncio.gather(*(crowd.enter(limiters[n % 2], n) for n in range(30)))
        assert crowd.most <= 2
        assert sorted(crowd.served) == list(range(30))

    in_cluster(main)


def test_a_restart_keeps_the_limit() -> None:
    async def main(cluster: FakeCluster) -> None:
        crowd = Crowd()
        clock = asyncio.get_running_loop().time
        async with cluster.line() as one, cluster.line() as two:
            limiters = [await one.get("x", SPEC), await two.get("x", SPEC)]
            tasks = [asyncio.create_task(crowd.enter(limiters[n % 2], n, seconds=5)) for n in range(6)]
            await asyncio.sleep(1)
            cluster.crash()
            await asyncio.gather(*tasks)
        assert crowd.most == 2
        assert len(crowd.served) == 6
        # The first two end at 5; the new server grants from about 11 on.
        assert 20 <= clock() <= 25
        assert cluster.recoveries[:2] == [False, False]
        assert set(cluster.recoveries[2:]) == {True}

    in_cluster(main)


def test_a_restart_is_told_once_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: FakeCluster) -> None:
        told: list[str] = []
        line = RayLimits(cluster.connect, join=lambda: False, restarted=told.append)
        limiter = await line.get("x", SPEC)
        await line.get("y", SPEC)
        assert told == []
        for number in (1, 2):
            cluster.crash()
            (await limiter.acquire()).release()
            assert cluster.server is not None
            assert len(told) == number
            assert told[-1] == cluster.server._life
        assert told[0] != told[1]
        await line.close()

    in_cluster(main)
    assert "the cluster's limits were lost and are there again" in caplog.text


def test_a_process_that_was_silent_for_too_long_hears_that_its_permit_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as one, cluster.line() as two:
            spec = LimitSpec(concurrency=1, lease=10)
            limiters = [await one.get("x", spec), await two.get("x", spec)]
            permit = await limiters[0].acquire()
            assert cluster.server is not None
            cluster.server._forget(one._client)  # As after a silence.
            other = await limiters[1].acquire()
            await asyncio.sleep(5)
            permit.release()  # Gives nobody else's back.
            await asyncio.sleep(1)
            assert (await cluster.server.state())["x"]["held"] == 1
            other.release()

    in_cluster(main)
    assert "a permit's lease ran out while its call went on" in caplog.text


def test_other_limits_under_one_name_are_an_error_here_and_elsewhere() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as one, cluster.line() as two:
            await one.get("x", SPEC)
            for line in (one, two):
                with pytest.raises(ConfigError, match="the limit 'x' is in use with concurrency 2 and lease 10 s"):
                    await line.get("x", LimitSpec(concurrency=3, lease=10))
            await asyncio.gather(*(line.get(name, SPEC) for line in (one, two) for name in "xyz"))
            assert cluster.server is not None
            assert {name: it["users"] for name, it in (await cluster.server.state()).items()} == dict.fromkeys("xyz", 2)

    in_cluster(main)


def test_a_permit_can_be_left_to_its_lease() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as line:
            limiter = await line.get("x", LimitSpec(concurrency=1, lease=10))
            permit = await limiter.acquire()
            permit.lease(3)
            begin = asyncio.get_running_loop().time()
            second = await limiter.acquire()
            assert asyncio.get_running_loop().time() - begin == pytest.approx(3, abs=0.1)
            second.lease(100)
            second.release()

    in_cluster(main)


def test_what_waits_when_the_line_is_closed_is_told() -> None:
    async def main(cluster: FakeCluster) -> None:
        line = RayLimits(cluster.connect, join=lambda: False)
        limiter = await line.get("x", LimitSpec(concurrency=1, lease=10))
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(1)
        await line.close()
        with pytest.raises(ToolUnavailableError, match="The limit 'x' was closed while the call waited"):
            await waiting
        with pytest.raises(ToolUnavailableError, match="The limit 'x' is closed"):
            await limiter.acquire()
        await line.close()

    in_cluster(main)


def test_a_cluster_that_cannot_be_reached_is_an_error_at_the_start() -> None:
    async def main(cluster: FakeCluster) -> None:
        cluster.lose = lambda method: "there"
        async with cluster.line() as line:
            with pytest.raises(
                ConfigError, match="the limits of the Ray cluster can't be reached: the actor is unavail"
            ):
                await line.get("x", SPEC)
        if cluster.server is not None:
            await cluster.server.goodbye(line._client)

    in_cluster(main)


def test_an_outage_stops_none_of_the_lines() -> None:
    async def main(cluster: FakeCluster) -> None:
        crowd = Crowd()
        async with cluster.line() as line:
            limiter = await line.get("x", SPEC)
            await crowd.enter(limiter, "before")
            cluster.lose = lambda method: "there"
            tasks = []
            for number in range(20):  # More than there are senders, each in a message of its own.
                tasks.append(asyncio.create_task(crowd.enter(limiter, number)))
                await asyncio.sleep(0.2)
            cluster.lose = lambda method: None
            await asyncio.gather(*tasks)
            for name in ("after", "and after that"):
                async with asyncio.timeout(60):
                    await crowd.enter(limiter, name)
            assert not any(task.done() for task in line._tasks)
        assert crowd.served == ["before", *range(20), "after", "and after that"]
        assert crowd.most == 2

    in_cluster(main)


def test_whatever_ray_raises_the_lines_go_on() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as line:
            limiter = await line.get("x", SPEC)
            connect, left = cluster.connect, [3]

            def refuse(**options: Any) -> Any:
                left[0] -= 1
                if left[0] >= 0:
                    raise ValueError("The name toolrl-limits is already taken.")
                return connect(**options)

            line._connect = refuse
            cluster.crash()
            async with asyncio.timeout(60):
                await Crowd().enter(limiter)
            assert left[0] < 0
            assert not any(task.done() for task in line._tasks)

    in_cluster(main)


def test_a_turn_that_nobody_waits_for_any_more_is_given_back() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as line:
            one = LimitSpec(concurrency=1, lease=10)
            limiter = await line.get("x", one)
            # Its message comes after the one that takes it back, as where one was sent again.
            await line._ask("update", [("want", f"{line._client}/late", "x")])
            assert cluster.server is not None
            assert (await cluster.server.state())["x"]["held"] == 1
            async with asyncio.timeout(20):
                await Crowd().enter(limiter)

    in_cluster(main)


def test_who_comes_back_and_finds_his_name_taken_by_other_limits_is_told(caplog: pytest.LogCaptureFixture) -> None:
    other = LimitSpec(concurrency=5, lease=10)

    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as one, cluster.line() as two:
            limiter = await one.get("x", LimitSpec(concurrency=1, lease=10))
            held = await limiter.acquire()
            waiting = asyncio.create_task(limiter.acquire())
            await asyncio.sleep(1)
            assert cluster.server is not None
            cluster.server._forget(one._client)  # As after a silence.
            await two.get("x", other)
            for turn in (waiting, limiter.acquire(), limiter.acquire()):
                with pytest.raises(
                    ToolUnavailableError, match="its limit 'x' is in use by others, with other settings"
                ):
                    await turn
            assert (await cluster.server.state())["x"] == {"users": 1, "held": 0, "waiting": 0}
            held.release()
            await two.close()
            await asyncio.sleep(1)
            permit = await limiter.acquire()  # The name is free again.
            assert (await cluster.server.state())["x"] == {"users": 1, "held": 1, "waiting": 0}
            permit.release()

    in_cluster(main)
    told = [it.getMessage() for it in caplog.records if "was silent for so long" in it.getMessage()]
    assert len(told) == 1
    assert (
        "the limit 'x' is in use with concurrency 5 and lease 10 s, and another tool asks for concurrency 1" in told[0]
    )


def test_two_who_are_refused_at_once_are_both_told() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with cluster.line() as one, cluster.line() as two:
            await one.get("x", SPEC)
            other = LimitSpec(concurrency=3, lease=10)
            refused = await asyncio.gather(*(two.get("x", other) for _ in range(2)), return_exceptions=True)
            assert [type(error) for error in refused] == [ConfigError, ConfigError]

    in_cluster(main)
