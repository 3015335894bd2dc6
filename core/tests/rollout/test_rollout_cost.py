"""What a turn costs doesn't grow with the turns before it, counted in operations instead of time."""

from __future__ import annotations

import asyncio
from typing import Any

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Message, ParsedTurn, ToolCall
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_task


class CountingFormat(FakeChatFormat):
    """Counts what is encoded and decoded, in tokens and messages, in each call."""

    def __init__(self) -> None:
        self.work: list[tuple[str, int]] = []

    def open(self, messages: Any, tools: Any) -> Any:
        rendered = super().open(messages, tools)
        self.work.append(("open", len(rendered.ids)))
        return rendered

    def bridge(self, sampled_ids: Any, messages: Any, tools: Any) -> Any:
        rendered = super().bridge(sampled_ids, messages, tools)
        self.work.append(("bridge", len(sampled_ids) + len(rendered.ids) + len(messages)))
        return rendered

    def decode(self, ids: Any) -> Any:
        self.work.append(("decode", len(ids)))
        return super().decode(ids)


class CountingParser(FakeParser):
    """Every turn is a call of a tool that isn't there, which is answered all the same."""

    def __init__(self) -> None:
        self.work: list[int] = []

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        self.work.append(len(text))
        return ParsedTurn((ToolCall("tool", {}, span=(0, len(text))),), "", status="calls")

    def render_results(self, records: Any) -> list[Message]:
        self.work.append(len(records))
        return [Message("tool", record.result.text) for record in records]


def test_a_turn_costs_what_the_first_one_did() -> None:
    turns, chat, parser = 40, CountingFormat(), CountingParser()
    engine = ScriptedEngine(["a call of so many characters"] * turns)
    environment = Environment("default", parser, chat, ToolBox([]), max_turns=turns)
    runner = Runner(engine, {"default": environment})
    (group,) = asyncio.run(runner.run([make_task()], 1, Limits(1000, 100_000), round_id="train-1"))
    assert len(group.episodes[0].turns) == turns
    # A turn is decoded, parsed, answered and bridged, whatever came before it; the prompt is rendered once.
    opened, *after = chat.work
    assert opened[0] == "open"
    assert after == after[:2] * (turns - 1) + after[:1]
    assert parser.work == parser.work[:2] * turns
