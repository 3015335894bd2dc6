"""How many permits a second a limit gives, in one process and over a Ray cluster.

    python tests/benchmarks/bench_limiter.py               # prints tables
    python tests/benchmarks/bench_limiter.py --json OUT.json

64 workers take a permit and give it back, again and again. In one process the peer is `asyncio.Semaphore`. On a cluster
the peer is the pattern that RL frameworks use: a named actor with a semaphore that threads wait on, one message to
acquire, one to release; 64 workers are spread over four processes, whose lines to the actor are one each. Ways take
turns, in turned order, and the figure is a median. The limit is once so high that nobody waits, once an eighth of it.

The part with ray is left out where ray isn't installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from toolrl.tools.rate_limits import ConcurrencyLimit, LimitSpec

WORKERS, PROCESSES = 64, 4


async def loop_for(seconds: float, workers: int, one: Callable[[], Awaitable[None]]) -> int:
    """How often `workers` at once do it in so many seconds."""
    end, count = time.perf_counter() + seconds, 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await one()
            count += 1

    await asyncio.gather(*(work() for _ in range(workers)))
    return count


async def local(way: str, permits: int, seconds: float) -> float:
    """Permits a second in this process."""
    limit, semaphore = ConcurrencyLimit(permits), asyncio.Semaphore(permits)

    async def ours() -> None:
        permit = await limit.acquire()
        await asyncio.sleep(0)
        permit.release()

    async def theirs() -> None:
        await semaphore.acquire()
        await asyncio.sleep(0)
        semaphore.release()

    return await loop_for(seconds, WORKERS, ours if way == "toolrl" else theirs) / seconds


class Threaded:
    """The peer's actor: a semaphore that a thread of the group `acquire` waits on."""

    def __init__(self, permits: int) -> None:
        self._semaphore = threading.Semaphore(permits)

    def acquire(self) -> None:
        self._semaphore.acquire()

    def release(self) -> None:
        self._semaphore.release()


class Client:
    """A process of workers."""

    async def ready(self) -> int:
        return os.getpid()

    async def toolrl(self, permits: int, workers: int, seconds: float) -> int:
        from toolrl_plugin_ray.limits import RayLimits

        limits = RayLimits()
        limiter = await limits.get("bench", LimitSpec(concurrency=permits))

        async def one() -> None:
            (await limiter.acquire()).release()

        count = await loop_for(seconds, workers, one)
        await limits.close()
        return count

    async def threads(self, actor: Any, workers: int, seconds: float) -> int:
        async def one() -> None:
            await actor.acquire.remote()
            actor.release.remote()

        return await loop_for(seconds, workers, one)


def cluster_ways(ray: Any) -> Callable[[str, int, float], float]:
    """Permits a second over the cluster, by way, permits and seconds."""
    clients = [ray.remote(Client).options(num_cpus=0).remote() for _ in range(PROCESSES)]
    ray.get([client.ready.remote() for client in clients])
    share = WORKERS // PROCESSES

    def run(way: str, permits: int, seconds: float) -> float:
        if way == "toolrl":
            return sum(ray.get([it.toolrl.remote(permits, share, seconds) for it in clients])) / seconds
        for name in ("acquire", "release"):
            setattr(Threaded, name, ray.method(concurrency_group=name)(getattr(Threaded, name)))
        kind = ray.remote(concurrency_groups={"acquire": 1, "release": 10}, num_cpus=0)(Threaded)
        actor = kind.remote(permits)
        ray.get([actor.acquire.remote(), actor.release.remote()])  # It has started.
        count = sum(ray.get([it.threads.remote(actor, share, seconds) for it in clients]))
        ray.kill(actor)
        return count / seconds

    return run


def compare(run: Callable[[str, int, float], float], peer: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each limit: permits a second of both, and the median of the rounds' ratios."""
    rows = []
    for permits in (WORKERS, WORKERS // 8):
        seen: dict[str, list[float]] = {"toolrl": [], peer: []}
        order = list(seen)
        for _ in range(rounds):
            for way in order:
                seen[way].append(run(way, permits, seconds))
            order.reverse()
        ratios = [ours / theirs for ours, theirs in zip(seen["toolrl"], seen[peer], strict=True)]
        rows.append(
            {
                "permits": permits,
                "toolrl": statistics.median(seen["toolrl"]),
                "peer": statistics.median(seen[peer]),
                "ratio": statistics.median(ratios),
                "ratio_first": statistics.median(ratios[0::2]),
                "ratio_second": statistics.median(ratios[1::2]),
            }
        )
    return rows


def show(title: str, peer: str, rows: list[dict[str, Any]]) -> None:
    print(f"{title}: permits a second\n{'permits':>8} {'toolrl':>10} {peer:>18} {'ratio':>7}  (first, second)")
    for row in rows:
        print(
            f"{row['permits']:8} {row['toolrl']:10.0f} {row['peer']:18.0f} {row['ratio']:7.2f}"
            f"  ({row['ratio_first']:.2f}, {row['ratio_second']:.2f})"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="times that both run, in turned order")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args(argv)
    result = {"local": compare(lambda *how: asyncio.run(local(*how)), "asyncio.Semaphore", arguments.rounds,
                               arguments.seconds)}  # fmt: skip
    show("one process", "asyncio.Semaphore", result["local"])
    if importlib.util.find_spec("ray") is None:
        print("ray isn't installed: pip install 'toolrl[cluster]' for the part over a cluster")
    else:
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        result["cluster"] = compare(cluster_ways(ray), "threads in actor", arguments.rounds, arguments.seconds)
        show("Ray cluster", "threads in actor", result["cluster"])
        ray.shutdown()
    if arguments.json:
        arguments.json.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
