"""What rollout workers on Ray cost an episode, and what a second one brings.

    python tests/benchmarks/ray_overhead.py               # prints two tables
    python tests/benchmarks/ray_overhead.py --json OUT.json

Overhead: an engine that answers at once, so that nothing but the machinery takes time; the same groups in this process
and by one worker, in turned order, medians. Seconds are those that pass; processor time is that of this process and of
the worker together.

Scaling: an engine that says a token each 20 ms, 16 episodes in flight a worker, and so many groups that the last ones
weigh little; one worker and two, in turned order, samples a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

try:
    import ray
except ModuleNotFoundError:
    raise SystemExit("ray isn't installed: pip install 'toolrl[cluster]'") from None

from toolrl.config.cluster import ClusterConfig
from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.runner import Runner
from toolrl.rollout.source import Oversight
from toolrl.tools.toolbox import ToolBox
from toolrl.types import ParsedTurn, Sampling
from toolrl_plugin_ray.connection import connected
from toolrl_plugin_ray.messages import WeightUpdate, WorkerSpec
from toolrl_plugin_ray.rollout import spawn
from toolrl_plugin_ray.rollout_worker import RolloutWorker
from toolrl_plugin_ray.worker_pool import WorkerPool
from toolrl_testing.fakes import FakeChatFormat, FakeWeights, ScriptedEngine, make_task

TOKEN_SECONDS = 0.02
IN_FLIGHT, GROUP = 16, 8
LIMITS = Limits(max_turn_tokens=2000, max_episode_tokens=4000)
QUESTION = "What is it? " * 20


class Plain:
    """Reads no call."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        return ParsedTurn(content=text)

    def render_results(self, records: Any) -> tuple[()]:
        return ()


class Speaker(ScriptedEngine):
    """Says a text of so many tokens, each of which takes so long."""

    def __init__(self, tokens: int, seconds: float) -> None:
        super().__init__(lambda prompt: "x" * tokens, latency=tokens * seconds)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **options: Any) -> Any:
        generation = await super().generate(prompt, sampling, **options)
        self.generated.clear()
        return generation


class Replica:
    """What samples on a worker here: no model."""

    def __init__(self, tokens: int, seconds: float, concurrency: int) -> None:
        environment = Environment("default", Plain(), FakeChatFormat(), ToolBox([]))
        self.runner = Runner(Speaker(tokens, seconds), {"default": environment}, concurrency=concurrency)

    async def load(self, update: WeightUpdate) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"cpu": time.process_time()}


@asynccontextmanager
async def replica(spec: WorkerSpec, update: WeightUpdate) -> AsyncIterator[Replica]:
    """`source` and `dtype` carry the engine's numbers."""
    yield Replica(int(spec.source), float(spec.dtype), spec.loaded.config.rollout.concurrency)


class Worker(RolloutWorker):
    """A worker without a model."""

    build = staticmethod(replica)


class NoWeights:
    """No weights travel."""

    async def publish(self, weights: Any, version: int) -> WeightUpdate:
        return WeightUpdate(version)

    async def send(self, update: WeightUpdate, workers: Any) -> None:
        pass

    @asynccontextmanager
    async def send_to_one(self, update: WeightUpdate, worker: object) -> AsyncIterator[WeightUpdate]:
        yield update

    def close(self) -> None:
        pass


@asynccontextmanager
async def pool(workers: int, tokens: int, seconds: float) -> AsyncIterator[WorkerPool]:
    rollout = {"concurrency": IN_FLIGHT}
    tree = {"model": {"path": "-"}, "environments": {"default": {}}, "rollout": rollout, "cluster": {"worker_cpus": 0}}
    config = Config.model_validate(tree)
    loaded = LoadedConfig(config, {}, "-")
    here = str(Path.cwd())
    spec = WorkerSpec(0, loaded, str(tokens), str(seconds), "cpu", here, "/nowhere")
    made = WorkerPool(
        lambda number: spawn(config.cluster, spec.log_path, Worker),
        lambda number: replace(spec, number=number),
        NoWeights(),
        Oversight(0.0),
        workers=workers,
        concurrency=IN_FLIGHT,
    )
    try:
        await made.start(FakeWeights(), 0)
        yield made
    finally:
        await made.stop()


async def round_of(source: Any, groups: int, name: str) -> float:
    """Seconds for so many groups."""
    tasks = [make_task(QUESTION, id=f"t{number}") for number in range(groups)]
    begin = time.perf_counter()
    await source.run(tasks, GROUP, LIMITS, round_id=name)
    return time.perf_counter() - begin


def worker_cpu(made: WorkerPool) -> float:
    return sum(float(it.get("cpu", 0.0)) for it in made.status()["workers"])


async def overhead(tokens: int, groups: int, repeats: int) -> dict[str, float]:
    """Milliseconds an episode of `tokens` sampled tokens, by way."""
    own = Replica(tokens, 0.0, IN_FLIGHT).runner
    found: dict[str, list[float]] = {"here": [], "here cpu": [], "ray": [], "ray cpu": []}
    async with pool(1, tokens, 0.0) as made:
        await round_of(made, groups, "warm")
        await round_of(own, groups, "warm")
        for number in range(repeats):
            ways: list[tuple[str, Any]] = [("here", own), ("ray", made)]
            for way, source in ways if number % 2 else reversed(ways):
                cpu = time.process_time() + worker_cpu(made)
                found[way].append(await round_of(source, groups, f"{way}-{number}"))
                found[f"{way} cpu"].append(time.process_time() + worker_cpu(made) - cpu)
    return {way: 1000 * statistics.median(values) / (groups * GROUP) for way, values in found.items()}


async def scaling(tokens: int, groups: int, repeats: int) -> dict[int, float]:
    """Samples a second by number of workers."""
    found: dict[int, list[float]] = {1: [], 2: []}
    async with pool(1, tokens, TOKEN_SECONDS) as one, pool(2, tokens, TOKEN_SECONDS) as two:
        pools = {1: one, 2: two}
        for number in range(repeats):
            for workers in (1, 2) if number % 2 else (2, 1):
                seconds = await round_of(pools[workers], groups, f"r{number}")
                found[workers].append(groups * GROUP / seconds)
    return {workers: statistics.median(values) for workers, values in found.items()}


async def measure(repeats: int) -> dict[str, Any]:
    async with connected(ClusterConfig(), lambda: None):
        costs = {tokens: await overhead(tokens, 32, repeats) for tokens in (64, 512)}
        rates = await scaling(32, 32, max(1, repeats // 3))
    return {"overhead_ms": costs, "samples_a_second": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each way (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    args = parser.parse_args()
    found = asyncio.run(measure(args.repeats))
    print(f"ray {ray.__version__}, {IN_FLIGHT} episodes in flight a worker, groups of {GROUP}\n")
    print("ms an episode    in process (cpu)      one worker (cpu)      more")
    for tokens, it in found["overhead_ms"].items():
        print(
            f"{tokens:5d} tokens      {it['here']:8.2f} ({it['here cpu']:.2f})      {it['ray']:8.2f} "
            f"({it['ray cpu']:.2f})      {it['ray'] - it['here']:.2f} ({it['ray cpu'] - it['here cpu']:.2f})"
        )
    one, two = found["samples_a_second"][1], found["samples_a_second"][2]
    print(f"\nsamples a second at {1000 * TOKEN_SECONDS:g} ms a token: one worker {one:.1f}, two {two:.1f}: "
          f"{two / one:.2f} times as many")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
