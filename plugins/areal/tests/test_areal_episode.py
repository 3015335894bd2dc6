"""Whole episodes: code and calculator in one answer, and how many calls AReaL's `max_turns` allows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolrl.parsing import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, ToolCall, ToolSpec
from toolrl_plugin_areal.parser import ArealTirParser
from toolrl_testing.fakes import FakeChatFormat, RecordingToolset, ScriptedEngine, make_task


def answer(call: ToolCall) -> str:
    return "x" * 1000 if "much" in str(call.arguments) else f"{call.name} ran"


def play(script: Sequence[str], max_turns: int = 3) -> Episode:
    chat = FakeChatFormat()
    python = ToolSpec("python", "Runs code.", {"type": "object", "properties": {"code": {"type": "string"}}})
    calculator = ToolSpec(
        "calculator", "Calculates.", {"type": "object", "properties": {"expression": {"type": "string"}}}
    )
    tools = ToolBox([ToolEntry("tools", RecordingToolset(answer, tools=(python, calculator)))])
    flags = EndFlags(["boxed"])
    environment = Environment("default", ArealTirParser(), chat, tools, end_flags=flags, max_turns=max_turns)
    engine = ScriptedEngine(script, chat)

    async def main() -> Episode:
        plan = EpisodePlan(make_task(), "group", 0, seed=1)
        return await EpisodeRun(plan, environment, engine, Limits(max_turn_tokens=400, max_episode_tokens=4000)).run()

    return asyncio.run(main())


def test_code_then_calculator_then_the_answer() -> None:
    episode = play(["so ```", "python\nprint(1)\n```", "and <calculator>1 + 1</calculator>", "it is \\boxed{2}"])
    assert (episode.failure, episode.stop_reason, episode.answer) == (None, "answer", "2")
    assert [(record.call.name, record.result.text) for record in episode.calls] == [
        ("python", "python ran"),
        ("calculator", "calculator ran"),
    ]
    assert episode.turns[0].segments[-1].text == "\n```output\npython ran\n```\n"
    assert episode.turns[0].segments[-1].origin == "tool"


def test_a_result_is_cut_in_the_turn_and_whole_in_the_record() -> None:
    episode = play(["<python>much</python>", "\\boxed{1}"])
    assert episode.turns[0].segments[-1].text == f"\n```output\n{'x' * 128}...{'x' * 128}\n```\n"
    assert len(episode.calls[0].result.text) == 1000


def test_two_calls_of_areal_and_an_answer_are_three_turns_and_a_last_call_has_no_reply() -> None:
    call = "<calculator>1 + 1</calculator>"
    episode = play([call, call, call, "never said"], max_turns=3)
    assert (episode.stop_reason, len(episode.turns), len(episode.calls)) == ("max_turns", 3, 3)
    assert [segment.origin for segment in episode.turns[-1].segments] == ["model"]
