"""A parser that reads token ids is asked for them instead of the text, and its spans lead back to tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import (
    CallRecord,
    Decoded,
    Episode,
    Generation,
    Message,
    ParsedTurn,
    Rendered,
    Sampling,
    ToolCall,
    ToolSpec,
)
from toolrl_testing.fakes import END_ID, FakeChatFormat, RecordingToolset, make_task

MARK = FakeChatFormat().open([Message("tool", "")], ()).ids[0]
"""One token; its text is `<|tool|>`, as is that of eight tokens of one letter each."""


class MarkParser:
    """A call is what stands between two marks."""

    def __init__(self, *, raises: bool = False) -> None:
        self.raises = raises
        self.seen: list[dict[str, Any]] = []

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        raise AssertionError("the ids were there")

    def parse_ids(self, ids: Sequence[int], decoded: Decoded, **more: Any) -> ParsedTurn:
        self.seen.append({"ids": ids, "text": decoded.text, **more})
        if self.raises:
            raise ValueError("broken")
        marks = [index for index, token in enumerate(ids) if token == MARK]
        items = []
        for first, last in zip(marks[::2], marks[1::2], strict=True):
            span = decoded.offsets[first], decoded.offsets[last + 1]
            items.append(ToolCall("echo", {}, span=span, raw=decoded.text[slice(*span)]))
        return ParsedTurn(tuple(items), status="calls" if items else "final")

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        return [Message("tool", record.result.text, tool_call_id=record.call.id) for record in records]


class ThinkingFormat(FakeChatFormat):
    """Its first prompt ends inside a thinking block, the later ones don't."""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        return Rendered(super().open(messages, tools).ids, in_thinking=True)


class IdEngine:
    """Samples these ids, turn by turn."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = list(turns)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **_: Any) -> Generation:
        ids = tuple(self.turns.pop(0))
        finish = "stop" if ids[-1] == END_ID else "length"
        stopped_by = END_ID if finish == "stop" else None
        return Generation(ids, (-1.0,) * len(ids), finish, stopped_by=stopped_by, versions=(0,) * len(ids))

    async def close(self, session: str) -> None:
        pass


def play(parser: MarkParser, turns: Sequence[Sequence[int]]) -> Episode:
    tools = ToolBox([ToolEntry("echo", RecordingToolset())])
    environment = Environment("default", parser, ThinkingFormat(), tools)
    limits = Limits(max_turn_tokens=200, max_episode_tokens=2000)
    engine: Any = IdEngine(turns)
    return asyncio.run(EpisodeRun(EpisodePlan(make_task(), "group", 0, seed=1), environment, engine, limits).run())


def spelled(text: str) -> list[int]:
    return list(map(ord, text))


def test_ids_decide_and_not_what_they_spell() -> None:
    parser = MarkParser()
    turn = [*spelled("say <|tool|>"), MARK, *spelled("x"), MARK, END_ID]
    episode = play(parser, [turn, [*spelled("<|tool|>done<|tool|>"), END_ID]])
    assert episode.failure is None
    assert [call.call.raw for call in episode.calls] == ["<|tool|>x<|tool|>"]
    assert episode.stop_reason == "final"
    start = episode.prompt_length
    # "say <|tool|>" is twelve tokens, the call the three behind them.
    assert episode.calls[0].call.tokens == (start + 12, start + 15)
    assert episode.ids[start + 12 : start + 15] == (MARK, ord("x"), MARK)


def test_what_it_is_told() -> None:
    parser = MarkParser()
    turn = [MARK, *spelled("x"), MARK, END_ID]
    play(parser, [turn, spelled("cut")])
    first, second = parser.seen
    assert first["ids"] == tuple(turn)
    assert first["text"] == "<|tool|>x<|tool|>"
    assert [spec.name for spec in first["tools"]] == ["echo"]
    assert (first["finish"], first["stopped_by"], first["prompt_in_thinking"]) == ("stop", None, True)
    assert (second["finish"], second["prompt_in_thinking"]) == ("length", False)


def test_a_failure_is_the_parsers() -> None:
    episode = play(MarkParser(raises=True), [[*spelled("x"), END_ID]])
    assert episode.failure is not None
    assert episode.failure.fault == "parser"
    assert "parse_ids() raised ValueError: broken" in episode.failure.message
