"""Secrets in a tool's errors: neither the model nor a log sees them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from toolrl.rollout.environment import Environment, Limits, NamedReward
from toolrl.rollout.runner import Runner
from toolrl.testing.fakes import (
    FakeChatFormat,
    RecordingToolset,
    ScriptedEngine,
    make_episode_context,
    make_task,
)
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, ParsedTurn, Score, ToolCall

SECRET = "s3cr3t-value"


def hide(text: str) -> str:
    return text.replace(SECRET, "${KEY}")


def test_what_a_crash_says_to_the_model_and_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def answer(call: ToolCall) -> str:
        raise ConnectionError(f"https://user:{SECRET}@host refused")

    box = ToolBox([ToolEntry("echo", RecordingToolset(answer))], hide=hide)

    async def main() -> str:
        async with box.open(make_task(), make_episode_context()) as session:
            return (await session.answer([ToolCall("echo", {})]))[0].result.text

    with caplog.at_level(logging.INFO):
        text = asyncio.run(main())
    assert "https://user:${KEY}@host refused" in text
    assert SECRET not in caplog.text


def test_what_a_failed_episode_keeps() -> None:
    class Raises:
        async def score(self, episode: Episode) -> Score:
            raise ConnectionError(f"https://user:{SECRET}@host refused")

    class NoCalls:
        def stops(self, turn_text: str) -> tuple[str, ...]:
            return ()

        def parse(self, text: str, **_: object) -> ParsedTurn:
            return ParsedTurn((), text)

        def render_results(self, records: object) -> tuple[()]:
            return ()

    env = Environment("default", NoCalls(), FakeChatFormat(), ToolBox([]), [NamedReward("r", Raises())])
    runner = Runner(ScriptedEngine(["x"]), {"default": env}, max_error_rate=1.0, hide=hide)
    episode = asyncio.run(runner.run([make_task()], 1, Limits(10, 100), round_id="train-1"))[0].episodes[0]
    assert episode.failure is not None
    assert "${KEY}@host" in episode.failure.message
    assert SECRET not in episode.failure.message + episode.failure.traceback
