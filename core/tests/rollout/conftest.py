"""A whole episode of one turn that calls tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools import as_toolset
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_build_context, make_task


def run_episode(limit: float, *names: str, targets: list[Any], reward: Any = None) -> Episode:
    entries = [
        ToolEntry(f"set{number}", as_toolset(it, None, make_build_context()), policy=PolicyOptions(timeout=limit))
        for number, it in enumerate(targets)
    ]
    rewards = [NamedReward("judge", reward)] if reward is not None else []
    environment = Environment(
        "default", FakeParser(lambda text: names), FakeChatFormat(), ToolBox(entries), rewards, max_turns=1
    )

    async def main() -> Episode:
        await environment.start()
        try:
            runner = Runner(ScriptedEngine(["x"]), {"default": environment}, max_error_rate=1.0)
            (group,) = await runner.run([make_task()], 1, Limits(50, 2000), round_id="train-1")
        finally:
            await environment.stop()
        return group.episodes[0]

    return asyncio.run(main())


@pytest.fixture
def episode_of() -> Callable[..., Episode]:
    """Called with the time limit of calls, the tools' names and `targets=`."""
    return run_episode
