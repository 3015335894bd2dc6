"""What a turn of an episode costs besides sampling and tools: the whole runner with a scripted engine.

    python tests/benchmarks/rollout_overhead.py                 # prints microseconds a turn
    python tests/benchmarks/rollout_overhead.py --json OUT.json # writes them too

1,024 episodes run at once, in groups of 8, of five turns each: words and a call in four, an answer in the last
(`scripted.py`). The engine answers with tokens from a script at once, so nothing is sampled; all else is what a run
has: the chat format `template` with the template of Qwen2.5, the parser `hermes`, two tools with checked arguments,
time limits and cut results, a reward, end flags, exactness checks. `inline` has a coroutine and an inline function as
tools, `threads` a coroutine and a function that runs in a thread; `recorded` is `inline` with every episode written to
a run folder. `one each` has groups of one, so that each episode brings a prompt of its own.

verl's `ToolAgentLoop` and verifiers' `ToolEnv` take part where they are installed (`peers_rollout.py` says how each
is run). All have the same texts and tools. A round runs all of them, every other one in the opposite order; a figure is
the median of the rounds, a ratio the median of the rounds' ratios to `inline`. `cpu` is processor time of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted import Script, ScriptEngine, Work, add, make_environment, make_tasks, make_tokenizer, multiply
from scripted import multiply_inline as inline

from toolrl.rollout.environment import Limits
from toolrl.rollout.runner import Runner
from toolrl.runs.episodes import EpisodeStore
from toolrl.types import Episode, Group

TARGET = 1000.0
"""Microseconds of processor time a turn, at most."""
GROUP = 8
LIMITS = Limits(max_turn_tokens=512, max_episode_tokens=8192)


@dataclass(frozen=True)
class Side:
    """One way to run all episodes."""

    name: str
    run: Callable[[], Awaitable[int]]
    """Runs them once; how many turns that were."""
    about: str = ""


def our_side(
    name: str, tools: Sequence[Any], count: int, work: Work, *, group: int = GROUP, record: bool = False
) -> Side:
    """toolrl's runner."""
    environment = make_environment(work, tools)
    engine = ScriptEngine(Script(work, make_tokenizer()))
    rounds = iter(range(1_000_000))

    async def run() -> int:
        before = engine.calls
        with tempfile.TemporaryDirectory() as folder:
            store = EpisodeStore(Path(folder))
            write: Callable[[Episode], None] | None = store.add if record else None
            runner = Runner(engine, {"default": environment}, concurrency=count, on_episode=write)
            await environment.start()
            number = f"round-{next(rounds)}"
            groups = await runner.run(make_tasks(count // group), group, LIMITS, round_id=number)
            await environment.stop()
            if record:
                store.close_step(0, "rollout")
        check(groups, work)
        return engine.calls - before

    return Side(name, run)


def check(groups: Sequence[Group], work: Work) -> None:
    """Every episode did what its script says."""
    for group in groups:
        for episode in group.episodes:
            assert episode.failure is None, episode.failure
            assert len(episode.turns) == work.turns
            for call, record in enumerate(episode.calls):
                said = work.say(int(episode.task.id) % work.variants, call)
                assert said.arguments is not None
                a, b = said.arguments["a"], said.arguments["b"]
                assert record.result.text == str(a * b if said.name == "multiply" else a + b)


def measure(sides: Sequence[Side], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds a turn of each side in each round, after one round that isn't counted."""
    seen: dict[str, dict[str, list[float]]] = {side.name: {"cpu": [], "wall": []} for side in sides}
    order = list(sides)
    for number in range(rounds + 1):
        for side in order:
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            turns = asyncio.run(_awaited(side.run))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number:
                seen[side.name]["cpu"].append(cpu / turns * 1e6)
                seen[side.name]["wall"].append(wall / turns * 1e6)
        order.reverse()
    return seen


async def _awaited(run: Callable[[], Awaitable[int]]) -> int:
    return await run()


def summary(seen: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians, and the ratio to `inline`."""
    ours = seen["inline"]["cpu"]
    return {
        name: {
            "cpu_us": statistics.median(times["cpu"]),
            "wall_us": statistics.median(times["wall"]),
            "ratio": statistics.median(theirs / mine for theirs, mine in zip(times["cpu"], ours, strict=True)),
        }
        for name, times in seen.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1024, help="at once; a multiple of 8")
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds, after one that isn't")
    parser.add_argument("--no-peers", action="store_true", help="toolrl alone")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and episodes, for a look")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    count, rounds = (256, 2) if options.quick else (options.episodes, options.rounds)
    logging.disable(logging.WARNING)
    work = Work()
    sides = [
        our_side("inline", [add, inline], count, work),
        our_side("threads", [add, multiply], count, work),
        our_side("recorded", [add, inline], count, work, record=True),
        our_side("one each", [add, inline], count, work, group=1),
    ]
    missing: dict[str, str] = {}
    if not options.no_peers:
        from peers_rollout import load_peers

        theirs, missing = load_peers(work, count)
        sides += [Side(name, run, about) for name, run, about in theirs]
    result: dict[str, Any] = {"episodes": count, "turns": work.turns, "sides": summary(measure(sides, rounds))}
    print(f"{count} episodes at once, {work.turns} turns each\n{'':12}{'cpu, µs a turn':>16}{'wall':>10}{'ratio':>8}")
    for name, figures in result["sides"].items():
        print(f"{name:12}{figures['cpu_us']:16.0f}{figures['wall_us']:10.0f}{figures['ratio']:8.2f}")
    for side in sides:
        if side.about:
            print(f"{side.name}: {side.about}")
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}")
    result["missing"] = missing
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["sides"]["inline"]["cpu_us"] > TARGET)


if __name__ == "__main__":
    sys.exit(main())
