"""Code of a tool or reward that blocks the event loop is warned of while it does, and has no more time than others."""

# ruff: noqa: ASYNC251 - to block is the point

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.rollout.environment import Environment, Limits, NamedReward
from toolrl.rollout.runner import Runner
from toolrl.testing.fakes import FakeChatFormat, RecordingToolset, ScriptedEngine, make_build_context, make_task
from toolrl.tools import Tool, as_toolset, tool
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, ParsedTurn, Score, ToolCall, ToolResult, ToolSpec

LIMITS = Limits(max_turn_tokens=50, max_episode_tokens=2000)
BLOCKED, LIMIT = 1.2, 0.4


class CallsAll:
    """One turn calls each of these tools once."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        return ParsedTurn(content=text, items=tuple(ToolCall(name, {}) for name in self.names))

    def render_results(self, records: Any) -> tuple[()]:
        return ()


def episode_of(*names: str, targets: list[Any], reward: Any = None) -> Episode:
    entries = [
        ToolEntry(f"set{number}", as_toolset(it, None, make_build_context()), policy=PolicyOptions(timeout=LIMIT))
        for number, it in enumerate(targets)
    ]
    rewards = [NamedReward("judge", reward, timeout=LIMIT)] if reward is not None else []
    environment = Environment("default", CallsAll(*names), FakeChatFormat(), ToolBox(entries), rewards, max_turns=1)

    async def main() -> Episode:
        await environment.start()
        try:
            runner = Runner(ScriptedEngine(["x"]), {"default": environment}, max_error_rate=1.0)
            (group,) = await runner.run([make_task()], 1, LIMITS, round_id="train-1")
        finally:
            await environment.stop()
        return group.episodes[0]

    return asyncio.run(main())


@tool
async def blocks() -> str:
    """Blocks."""
    time.sleep(BLOCKED)
    return "done"


@tool(name="blocks")
async def blocks_between() -> str:
    """Blocks between two waits."""
    await asyncio.sleep(0)
    time.sleep(BLOCKED)
    await asyncio.sleep(0)
    return "done"


@tool(name="blocks", inline=True)
def blocks_inline() -> str:
    """Blocks."""
    time.sleep(BLOCKED)
    return "done"


class BlocksTool(Tool):
    spec = ToolSpec("blocks", "Blocks.")

    async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
        time.sleep(BLOCKED)
        return "done"


def block(_: ToolCall) -> ToolResult:
    time.sleep(BLOCKED)
    return ToolResult("done")


TOOLS: dict[str, Callable[[], Any]] = {
    "at once": lambda: blocks,
    "between": lambda: blocks_between,
    "inline": lambda: blocks_inline,
    "class": lambda: BlocksTool(),
    "toolset": lambda: RecordingToolset(answer=block, tools=(ToolSpec("blocks", "Blocks."),)),
}


@pytest.mark.parametrize("form", TOOLS)
def test_a_call_that_blocks_the_loop_is_warned_of_and_times_out(form: str, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[float] = []

    @tool
    async def waits() -> str:
        """Waits a little, several times."""
        for _ in range(4):
            await asyncio.sleep(LIMIT / 20)
        ended.append(time.time())
        return "waited"

    with caplog.at_level(logging.WARNING):
        episode = episode_of("waits", "blocks", targets=[TOOLS[form](), waits])
    waited, blocked = (record.result for record in episode.turns[0].calls)
    assert blocked.error == "timeout"
    assert (waited.text, waited.error) == ("waited", None)  # it isn't to blame
    (warning,) = (record for record in caplog.records if "event loop" in record.message)
    assert "tool 'blocks'" in warning.message
    assert "time.sleep(BLOCKED)" in warning.message.splitlines()[-1]
    assert f"{__file__}" in warning.message
    assert "toolrl/tools" not in warning.message
    assert warning.created < ended[0]  # at once


def test_a_blocking_stage_and_a_blocking_reward_are_named_too(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(BlocksTool):
        async def create(self, instance_id: str, **kwargs: Any) -> None:
            time.sleep(BLOCKED)

        async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
            return "done"

    class Judge:
        async def score(self, episode: Episode) -> Score:
            time.sleep(BLOCKED)
            return Score(1.0)

    with caplog.at_level(logging.WARNING):
        episode = episode_of("blocks", targets=[Slow()], reward=Judge())
    named = [record.message.partition(" blocks the event loop")[0] for record in caplog.records]
    assert named == ["tool 'blocks'", "reward 'judge'"]
    assert episode.failure is not None
    assert "reward 'judge' gave no score within 0.4 s" in episode.failure.message


def test_tools_that_wait_as_they_should_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def in_a_thread() -> str:
        """Blocks a thread."""
        time.sleep(LIMIT / 2)
        return "done"

    @tool
    async def waits() -> str:
        """Waits."""
        await asyncio.to_thread(time.sleep, LIMIT / 2)
        return "done"

    with caplog.at_level(logging.WARNING):
        episode = episode_of("in_a_thread", "waits", targets=[in_a_thread, waits])
    assert [record.result.text for record in episode.turns[0].calls] == ["done", "done"]
    assert not caplog.records
