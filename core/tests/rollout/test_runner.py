"""Groups of episodes in flight: order, seeds, limits of concurrency and of failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.errors import RunStoppedError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Group, ToolCall
from toolrl_testing.fakes import FakeChatFormat, FakeParser, RecordingToolset, ScriptedEngine, make_task

LIMITS = Limits(max_turn_tokens=50, max_episode_tokens=500)


def an_environment(name: str = "default", toolset: Any = None) -> Environment:
    entries = [ToolEntry("t", toolset)] if toolset is not None else []
    return Environment(name, FakeParser(), FakeChatFormat(), ToolBox(entries))


def run(runner: Runner, tasks: list[Any], size: int = 3, round_id: str = "train-1") -> list[Group]:
    return asyncio.run(runner.run(tasks, size, LIMITS, round_id=round_id))


def test_concurrency_is_bounded() -> None:
    engine = ScriptedEngine(["x"], latency=0.001)
    run(Runner(engine, {"default": an_environment()}, concurrency=4), [make_task(id=f"t{n}") for n in range(6)])
    assert engine.most_at_once == 4


def test_all_that_is_in_flight_at_once_shares_one_bound() -> None:
    """An evaluation beside groups that a training run keeps in flight."""
    engine = ScriptedEngine(["x"], latency=0.001)
    runner = Runner(engine, {"default": an_environment()}, concurrency=3)

    async def main() -> None:
        groups = [
            runner.group(make_task(id=f"t{number}"), number, 3, LIMITS, round_id="train-1", gate=runner.gate())
            for number in range(3)
        ]
        evaluation = runner.run([make_task(id="e")], 6, LIMITS, round_id="eval-1", training=False)
        await asyncio.gather(*groups, evaluation)

    for _ in range(2):  # Also on another event loop.
        asyncio.run(main())
    assert engine.most_at_once == 3
    assert engine.calls == 2 * (3 * 3 + 6)


def test_seeds_differ_between_episodes_and_repeat_between_runs() -> None:
    def seeds(seed: int, round_id: str = "train-1") -> list[int | None]:
        engine = ScriptedEngine(["x"])
        run(Runner(engine, {"default": an_environment()}, seed=seed), [make_task()], round_id=round_id)
        return [g.sampling.seed for g in sorted(engine.generated, key=lambda g: g.session)]

    assert len(set(seeds(0))) == 3
    assert seeds(0) == seeds(0)
    assert set(seeds(0)).isdisjoint(seeds(1))
    assert set(seeds(0)).isdisjoint(seeds(0, "train-2"))


def test_too_many_failures_stop_the_run_and_say_whose_fault() -> None:
    broken = an_environment(toolset=RecordingToolset(fails=frozenset({"open"})))
    seen: list[Episode] = []
    runner = Runner(ScriptedEngine(["x"]), {"default": broken}, max_error_rate=0.5, on_episode=seen.append)
    with pytest.raises(RunStoppedError, match="3 of 3 episodes failed.*tool"):
        run(runner, [make_task()])
    assert len(seen) == 3


def test_a_tool_that_always_crashes_stops_the_run() -> None:
    def dead(call: ToolCall) -> str:
        raise ConnectionError("no route to host")

    def crashes(allowed: float) -> Runner:
        environment = Environment(
            "default",
            FakeParser(lambda text: ["echo"]),
            FakeChatFormat(),
            ToolBox([ToolEntry("t", RecordingToolset(dead))]),
            max_turns=1,
        )
        return Runner(ScriptedEngine(["x"]), {"default": environment}, max_error_rate=allowed)

    with pytest.raises(RunStoppedError, match="9 of 9 tool calls crashed.*'echo'"):
        run(crashes(0.5), [make_task(id=f"t{number}") for number in range(3)])
    assert len(run(crashes(1.0), [make_task()])) == 1
    assert len(run(crashes(0.5), [make_task()])) == 1, "three crashes are too few to tell"
