"""What each way to schedule rollout and training makes of slow tools, with nothing computed.

    python tests/benchmarks/schedule_slow_tools.py [--steps 12] [--json OUT]

An engine that answers after 0.1 s whatever it is asked, and an update that takes 0.5 s: so the figures are of waiting
alone, and hold on a machine that is busy. Steps of 16 tasks with 8 episodes, each with one call of a tool that takes
exp(N(−1, 0.8)) seconds, at most 5.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from toolrl.loop.batches import BatchSource, Demand, SynchronousBatches
from toolrl.loop.data import EndlessOrder
from toolrl.loop.overlap import OverlappingBatches
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.runner import Runner
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Task
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_build_context, make_task

GENERATION, UPDATE = 0.1, 0.5
"""Seconds."""
Make = Callable[[Runner, EndlessOrder[Task], Demand], BatchSource]


def _overlapping(staleness: int, replay: float = 0.0) -> Make:
    return lambda runner, order, demand: OverlappingBatches(
        runner, order, demand, max_staleness=staleness, replay=replay
    )


MODES: dict[str, Make] = {
    "in turns": SynchronousBatches,
    "max_staleness: 1": _overlapping(1),
    "max_staleness: 2": _overlapping(2),
    "max_staleness: 4": _overlapping(4),
    "max_staleness: 4, replay: 0.5": _overlapping(4, 0.5),
}


async def measure(make: Make, steps: int, *, rows: int = 16, scale: float = 1.0, seed: int = 0) -> float:
    """Seconds a step, by the clock of the event loop; `scale` stretches all times, `seed` is the latencies'."""
    latencies, loop = random.Random(seed), asyncio.get_running_loop()

    @tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(scale * min(latencies.lognormvariate(-1.0, 0.8), 5.0))
        return "done"

    box = ToolBox([ToolEntry("wait", as_toolset(wait, None, make_build_context("wait")))])
    environment = Environment(
        "default", FakeParser(lambda text: ["wait"] if text == "call" else []), FakeChatFormat(), box
    )
    engine = ScriptedEngine(["call", "end"], latency=scale * GENERATION)
    runner = Runner(engine, {"default": environment}, concurrency=4096)
    order = EndlessOrder([make_task(id=f"t{number}") for number in range(10_000)], seed=0)
    demand = Demand(steps, rows, 8, Limits(max_turn_tokens=60, max_episode_tokens=900))
    supply = make(runner, order, demand)
    await engine.start()
    await box.start()
    begin = loop.time()
    for step in range(1, steps + 1):
        assert len(await supply.take(step)) == rows
        await asyncio.sleep(scale * UPDATE)
        supply.trained(step)
        supply.weights_updated(step)
    seconds = loop.time() - begin
    await supply.close()
    await box.stop()
    await engine.stop()
    return seconds / steps


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    found: dict[str, float] = {}
    print("| mode | seconds a step | steps a second over `in turns` |\n|---|---|---|")
    for mode, make in MODES.items():
        found[mode] = asyncio.run(measure(make, options.steps))
        print(f"| `{mode}` | {found[mode]:.2f} | {found['in turns'] / found[mode]:.2f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
