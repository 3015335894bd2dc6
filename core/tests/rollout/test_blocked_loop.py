"""Code of a tool or reward that blocks the event loop is warned of while it does, and has no more time than others."""

# ruff: noqa: ASYNC251 - to block is the point

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.tools import Tool, tool
from toolrl.types import Episode, Score, ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import RecordingToolset

BLOCKED, LIMIT = 1.2, 0.4


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
    "class": lambda: BlocksTool(),
    "toolset": lambda: RecordingToolset(answer=block, tools=(ToolSpec("blocks", "Blocks."),)),
}


@pytest.mark.parametrize("form", TOOLS)
def test_a_call_that_blocks_the_loop_is_warned_of_and_times_out(
    form: str, episode_of: Callable[..., Episode], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.time()
    with caplog.at_level(logging.WARNING):
        episode = episode_of(LIMIT, "blocks", targets=[TOOLS[form]()])
    assert episode.calls[0].result.error == "timeout"
    (warning,) = (record for record in caplog.records if "event loop" in record.message)
    assert "tool 'blocks'" in warning.message
    assert "time.sleep(BLOCKED)" in warning.message.splitlines()[-1]
    assert f"{__file__}" in warning.message
    assert "toolrl/tools" not in warning.message
    assert warning.created < began + BLOCKED  # at once


def test_a_blocking_stage_and_a_blocking_reward_are_named_too(
    episode_of: Callable[..., Episode], caplog: pytest.LogCaptureFixture
) -> None:
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
        episode_of(LIMIT, "blocks", targets=[Slow()], reward=Judge())
    named = [record.message.partition(" blocks the event loop")[0] for record in caplog.records]
    assert named == ["tool 'blocks': create", "reward 'judge'"]


def test_tools_that_wait_as_they_should_are_not_warned_of(
    episode_of: Callable[..., Episode], caplog: pytest.LogCaptureFixture
) -> None:
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
        episode = episode_of(LIMIT, "in_a_thread", "waits", targets=[in_a_thread, waits])
    assert [record.result.text for record in episode.turns[0].calls] == ["done", "done"]
    assert not caplog.records
