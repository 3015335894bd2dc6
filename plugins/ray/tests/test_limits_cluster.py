"""Limits on a real Ray cluster of three nodes: 64 workers, deaths, restarts.

Each of the 64 workers is a client of its own. They sit in 9 processes, as starting 64 takes minutes on a small machine;
with TOOLRL_SLOW=1, as `nox -s slow` sets it, each has a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

import ray

from toolrl.tools.rate_limits import LimitSpec
from toolrl_plugin_ray.connection import NAMESPACE
from toolrl_plugin_ray.limits import ACTOR, RayLimits

SETTINGS = {
    "RAY_gcs_server_request_timeout_seconds": "240",  # A busy machine takes long to start three nodes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_AUTH_MODE": "disabled",
}
WORKERS = 64
PROCESSES = WORKERS if os.environ.get("TOOLRL_SLOW") else 9
LEASE = 6.0

Held = tuple[float, float]
"""When a permit was got and given back, by the machine's clock, which all nodes of this cluster share."""


class Process:
    """A process with clients of its own."""

    def __init__(self) -> None:
        self._clients: list[RayLimits] = []
        self._permits: dict[str, Any] = {}

    async def where(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    async def rounds(self, name: str, spec: LimitSpec, *, workers: int = 1, count: int, seconds: float) -> list[Held]:
        """Each worker takes a permit so many times, and holds it for a while."""
        return [span for spans in await asyncio.gather(
            *(self._worker(name, spec, count, seconds) for _ in range(workers))
        ) for span in spans]  # fmt: skip

    async def _worker(self, name: str, spec: LimitSpec, count: int, seconds: float) -> list[Held]:
        limiter = await self._client().get(name, spec)
        held = []
        for _ in range(count):
            permit = await limiter.acquire()
            got = time.monotonic()
            await asyncio.sleep(seconds)
            held.append((got, time.monotonic()))
            permit.release()
        return held

    async def take(self, name: str, spec: LimitSpec) -> float:
        """Take a permit and keep it; when that was."""
        self._permits[name] = await (await self._client().get(name, spec)).acquire()
        return time.monotonic()

    async def give(self, name: str) -> None:
        self._permits.pop(name).release()

    async def leave(self) -> None:
        while self._clients:
            await self._clients.pop().close()

    def _client(self) -> RayLimits:
        self._clients.append(RayLimits())
        return self._clients[-1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes; this process is the driver."""
    from ray.cluster_utils import Cluster

    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    node = {"num_cpus": 1, "resources": {"place": WORKERS}, "include_log_monitor": False}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**node)
        ray.init(address=made.address, namespace="tests", log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def make(count: int) -> list[Any]:
    kind = ray.remote(Process).options(num_cpus=0, resources={"place": 1}, scheduling_strategy="SPREAD")
    made = [kind.remote() for _ in range(count)]
    ray.get([it.where.remote() for it in made])
    return made


@pytest.fixture(scope="module")
def crowd(cluster: Any) -> list[Any]:
    """Processes on all three nodes."""
    made = make(PROCESSES)
    assert len({node for node, _ in ray.get([it.where.remote() for it in made])}) == 3
    return made


def most_at_once(held: Sequence[Held]) -> int:
    changes = sorted([(got, 1) for got, _ in held] + [(gave, -1) for _, gave in held])
    inside = most = 0
    for _, change in changes:
        inside += change
        most = max(most, inside)
    return most


def state(name: str) -> dict[str, int]:
    """Of one limit; empty where there is none, or no actor."""
    try:
        actor = ray.get_actor(ACTOR, namespace=NAMESPACE)
        found: dict[str, int] = ray.get(actor.state.remote()).get(name, {})
    except (ValueError, ray.exceptions.RayActorError):
        return {}
    return found


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.05)


def test_64_workers_on_three_nodes_never_exceed_the_limit(crowd: list[Any]) -> None:
    spec = LimitSpec(concurrency=5, lease=60)
    shares = [len(range(number, WORKERS, len(crowd))) for number in range(len(crowd))]
    running = [
        it.rounds.remote("crowd", spec, workers=share, count=5, seconds=0.005)
        for it, share in zip(crowd, shares, strict=True)
    ]
    held = [span for spans in ray.get(running) for span in spans]
    assert len(held) == WORKERS * 5
    assert 1 < most_at_once(held) <= 5
    ray.get([it.leave.remote() for it in crowd])
    with pytest.raises(ValueError, match="Failed to look up actor"):
        for _ in range(600):  # With its last client it ends.
            ray.get_actor(ACTOR, namespace=NAMESPACE)
            time.sleep(0.05)


def test_a_killed_processs_permit_comes_back_within_the_lease_and_a_living_ones_does_not(crowd: list[Any]) -> None:
    spec, heir, (victim, other) = LimitSpec(concurrency=1, lease=LEASE), crowd[0], make(2)
    ray.get(victim.take.remote("death", spec))
    queued = heir.take.remote("death", spec)
    wait_for(lambda: state("death").get("waiting") == 1)
    assert not ray.wait([queued], timeout=2 * LEASE)[0]  # It lives, so it keeps its permit.
    pids = [ray.get(it.where.remote())[1] for it in (victim, other)]
    killed = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    assert ray.get(queued) - killed <= LEASE + 1.0  # A second for a busy machine.
    # One that is killed while it waits leaves the queue, too.
    third = other.take.remote("death", spec)
    wait_for(lambda: state("death").get("waiting") == 1)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: state("death") == {"users": 1, "held": 1, "waiting": 0})
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(third)
    ray.get(heir.leave.remote())


@pytest.mark.slow
def test_a_restart_of_the_actor_loses_no_permit_and_makes_none(crowd: list[Any]) -> None:
    spec, some = LimitSpec(concurrency=3, lease=LEASE), crowd[:6]
    running = [it.rounds.remote("restart", spec, count=8, seconds=0.5) for it in some]
    wait_for(lambda: state("restart").get("waiting") == 3)
    ray.kill(ray.get_actor(ACTOR, namespace=NAMESPACE), no_restart=False)
    held = [span for spans in ray.get(running) for span in spans]
    assert len(held) == 48
    assert most_at_once(held) <= 3
    ray.get([it.leave.remote() for it in some])


@pytest.mark.slow
def test_the_actor_ends_when_its_last_client_was_killed(cluster: Any) -> None:
    spec, (last,) = LimitSpec(concurrency=1, lease=LEASE), make(1)
    ray.get(last.take.remote("last", spec))
    assert state("last") == {"users": 1, "held": 1, "waiting": 0}
    os.kill(ray.get(last.where.remote())[1], signal.SIGKILL)

    def is_gone() -> bool:
        try:
            ray.get_actor(ACTOR, namespace=NAMESPACE)
        except ValueError:
            return True
        return False

    wait_for(is_gone)
