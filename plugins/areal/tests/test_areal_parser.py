"""The parser `areal_tir`: which of the calls is run, and how results are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.parsing import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import CallRecord, Episode, ParsedTurn, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_areal.options import ArealTirParserOptions
from toolrl_plugin_areal.parser import ArealTirParser
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.fakes import FakeChatFormat, RecordingToolset, ScriptedEngine, make_task

PYTHON = ToolSpec("python", "Runs code.", {"type": "object", "properties": {"code": {"type": "string"}}})
CALCULATOR = ToolSpec("calculator", "Calculates.", {"type": "object", "properties": {"expression": {"type": "string"}}})
TWO = "```python\na = 1\n```\nthen\n```python\nprint(a)\n```"


def parse(text: str, *, tools: tuple[ToolSpec, ...] = (), stopped_by: str | None = None, **options: Any) -> ParsedTurn:
    return ArealTirParser(ArealTirParserOptions(**options)).parse(text, tools=tools, stopped_by=stopped_by)


def read(turn: ParsedTurn) -> list[str]:
    return [next(iter(i.arguments.values())) if isinstance(i, ToolCall) else f"!{i.kind}" for i in turn.items]


def test_the_last_call_is_run_and_the_others_are_text() -> None:
    turn = parse(TWO)
    assert read(turn) == ["print(a)"]
    assert turn.content == "```python\na = 1\n```\nthen\n"
    assert turn.status == "calls"
    assert read(parse(f"<calculator>1</calculator>\n{TWO}\n<calculator>2</calculator>")) == ["2"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nprint(1)\n```\n<python>print(2)</python>", "print(2)"),
        ("<python>print(2)</python>\n```python\nprint(1)\n```", "print(1)"),
        ("<calculator>1</calculator>\n```python\nprint(1)\n```\nand", "print(1)"),
        ("```\nprint(1)\n```", None),
        ("<think>```python\nprint(1)\n```</think>no", None),
        ("<python>print(1)</calculator>", "!unclosed"),
        ("<calculator> </calculator>", "!empty"),
    ],
)
def test_which_of_several_is_run(text: str, found: str | None) -> None:
    assert read(parse(text)) == ([] if found is None else [found])


def test_unclosed_calls_may_be_text() -> None:
    turn = parse("so <python>print(1)", answer_unclosed=False)
    assert (turn.items, turn.content, turn.status) == ((), "so <python>print(1)", "final")
    stray = parse("a </python>", stopped_by="</python>", answer_unclosed=False)
    assert (stray.items, stray.status) == ((), "continue")
    assert read(parse("```python\n```", answer_unclosed=False)) == ["!empty"]


def test_markers_of_a_tool_that_is_not_enabled_are_text() -> None:
    text = "```python\nprint(1)\n```\n<calculator>2</calculator>"
    assert read(parse(text, tools=(PYTHON,))) == ["print(1)"]
    assert read(parse(text, tools=(CALCULATOR,))) == ["2"]
    assert read(parse(text, tools=(PYTHON, CALCULATOR))) == ["2"]
    turn = parse("<calculator>2</calculator>", tools=(PYTHON,), stopped_by="</calculator>")
    assert (turn.items, turn.content, turn.status) == ((), "<calculator>2</calculator>", "continue")
    fence = parse("```python\nprint(1)\n```", tools=(CALCULATOR,), stopped_by="```")
    assert (fence.items, fence.status) == ((), "continue")


def test_generation_goes_on_where_a_fence_only_opens() -> None:
    parser = ArealTirParser()
    assert "```" in parser.stops("so ")
    assert parser.parse("so\n```", tools=(), stopped_by="```").status == "continue"
    assert parser.stops("<think></think>\n<calculator>1") == ("</calculator>",)
    assert parser.parse("```python\nx = '```", tools=(), stopped_by="```").status == "continue"
    assert parser.parse("```python\nx = 1\n```", tools=(), stopped_by="```").status == "calls"


def record(text: str) -> CallRecord:
    return CallRecord(ToolCall("python", {"code": "1"}), ToolResult(text))


def test_long_results_lose_their_middle() -> None:
    shown = ArealTirParser().render_results([record("a" * 300 + "b" * 300)])
    assert shown == f"\n```output\n{'a' * 128}...{'b' * 128}\n```\n"
    assert "a" * 256 in ArealTirParser().render_results([record("a" * 256)])
    whole = ArealTirParser(ArealTirParserOptions(max_result_chars=None))
    assert "a" * 600 in whole.render_results([record("a" * 600)])


PIECES = [
    "```python\n", "\n```\n", "```", "<python>", "</python>", "<calculator>", "</calculator>", "1", "'", "\n", "é",
    "<think>", "</think>", "```output\n", "x = 1",
]  # fmt: skip
STOPS = st.sampled_from([None, "```", "~~~", "</python>", "</calculator>", "</think>", "</answer>"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    STOPS,
    st.booleans(),
    st.sampled_from([(), (PYTHON,), (CALCULATOR,), (PYTHON, CALCULATOR)]),
)
def test_no_character_is_lost_and_the_call_is_one_of_tirs(
    text: str, stopped_by: str | None, answer: bool, tools: tuple[ToolSpec, ...]
) -> None:
    turn = parse(text, tools=tools, stopped_by=stopped_by, answer_unclosed=answer)
    plain = TirParser().parse(text, tools=(), stopped_by=stopped_by)
    assert [item for item in plain.items if item in turn.items] == list(turn.items)
    calls = [item for item in turn.items if isinstance(item, ToolCall)]
    assert len(calls) <= 1
    assert not calls or len(turn.items) == 1
    assert all(not tools or call.name in [spec.name for spec in tools] for call in calls)
    assert turn.content == "".join(text[start:end] for start, end in turn.content_spans)
    spans = sorted([*turn.content_spans, *(item.span for item in turn.items)])
    before = sorted([*plain.content_spans, *(item.span for item in plain.items)])
    assert sum(end - start for start, end in spans) == sum(end - start for start, end in before)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    assert turn.status in (("calls" if turn.items else "final"), "continue" if stopped_by else "")


# Whole episodes.


def answer(call: ToolCall) -> str:
    return "x" * 1000 if "much" in str(call.arguments) else f"{call.name} ran"


def play(script: Sequence[str], max_turns: int = 3) -> Episode:
    chat = FakeChatFormat()
    tools = ToolBox([ToolEntry("tools", RecordingToolset(answer, tools=(PYTHON, CALCULATOR)))])
    flags = EndFlags(["boxed"])
    environment = Environment("default", ArealTirParser(), chat, tools, end_flags=flags, max_turns=max_turns)
    engine = ScriptedEngine(script, chat)

    async def main() -> Episode:
        plan = EpisodePlan(make_task(), "group", 0, seed=1)
        return await EpisodeRun(plan, environment, engine, Limits(max_turn_tokens=400, max_episode_tokens=4000)).run()

    return asyncio.run(main())


def test_a_result_is_cut_in_the_turn_and_whole_in_the_record() -> None:
    episode = play(["<python>much</python>", "\\boxed{1}"])
    assert episode.turns[0].segments[-1].text == f"\n```output\n{'x' * 128}...{'x' * 128}\n```\n"
    assert len(episode.calls[0].result.text) == 1000


def test_two_calls_of_areal_and_an_answer_are_three_turns_and_a_last_call_has_no_reply() -> None:
    call = "<calculator>1 + 1</calculator>"
    episode = play([call, call, call, "never said"], max_turns=3)
    assert (episode.stop_reason, len(episode.turns), len(episode.calls)) == ("max_turns", 3, 3)
    assert [segment.origin for segment in episode.turns[-1].segments] == ["model"]
