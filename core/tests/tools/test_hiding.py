"""Secrets in a tool's errors: neither the model nor a log sees them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolError
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import token_cut
from toolrl.types import Episode, Score, ToolCall, ToolResult
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    RecordingToolset,
    ScriptedEngine,
    make_episode_context,
    make_task,
)

SECRET = "s3cr3t-value"


def hide(text: str) -> str:
    return text.replace(SECRET, "${KEY}")


async def test_what_a_crash_says_to_the_model_and_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def answer(call: ToolCall) -> str:
        raise ConnectionError(f"https://user:{SECRET}@host refused")

    box = ToolBox([ToolEntry("echo", RecordingToolset(answer))], hide=hide)
    with caplog.at_level(logging.INFO):
        async with box.open(make_task(), make_episode_context()) as session:
            (record,) = await session.answer([ToolCall("echo", {})])
    assert "https://user:${KEY}@host refused" in record.result.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("kind", ["raised", "crash", "given", "cached"])
async def test_a_secret_is_taken_out_before_an_error_is_cut(scene: Any, kind: str) -> None:
    async def answer(call: ToolCall) -> ToolResult:
        text = "x" * (int(call.arguments["n"])) + SECRET + "y" * 500
        if kind in ("given", "cached"):
            return ToolResult(text, error="tool_error")
        raise ToolError(text) if kind == "raised" else ConnectionError(text)

    toolset = scene(answer, {}, names=["echo"], traits=ToolTraits(pure=True))
    policy = PolicyOptions(max_output_tokens=60, truncate="head", cache=5 if kind == "cached" else None)
    box = ToolBox([ToolEntry("echo", toolset, policy=policy)], cut=token_cut(FakeChatFormat()), hide=hide)
    async with box.open(make_task(), make_episode_context()) as session:
        for n in range(40):
            (record,) = await session.answer([ToolCall("echo", {"n": n})])
            assert SECRET[:4] not in record.result.text
            assert len(record.result.text) <= 60


def test_what_a_failed_episode_keeps() -> None:
    class Raises:
        async def score(self, episode: Episode) -> Score:
            raise ConnectionError(f"https://user:{SECRET}@host refused")

    env = Environment("default", FakeParser(), FakeChatFormat(), ToolBox([]), [NamedReward("r", Raises())])
    runner = Runner(ScriptedEngine(["x"]), {"default": env}, max_error_rate=1.0, hide=hide)
    episode = asyncio.run(runner.run([make_task()], 1, Limits(10, 100), round_id="train-1"))[0].episodes[0]
    assert episode.failure is not None
    assert "${KEY}@host" in episode.failure.message
    assert SECRET not in episode.failure.message + episode.failure.traceback
