"""A call runs with the name and the arguments that were written together, whatever happens to the marks around them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.types import CallError, Message, ParsedTurn, ToolCall, ToolSpec
from toolrl_plugin_renderers.families import FAMILIES

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = (
    ToolSpec("move", "", {"type": "object", "properties": {"src": STRING, "dst": STRING}}),
    ToolSpec("show", "", {"type": "object", "properties": {"path": STRING, "depth": INTEGER}}),
    ToolSpec("now", "", {"type": "object", "properties": {}}),
)
CALLS = (
    ToolCall("move", {"src": "alpha", "dst": "beta"}, id="functions.move:0"),
    ToolCall("now", {}, id="functions.now:1"),
    ToolCall("show", {"path": "gamma", "depth": 3}, id="functions.show:2"),
)
MARK = re.compile(r"<[^<>\n]*>")
ONE_CALL = {"llama-3": "; ", "gpt-oss": "<|end|><|start|>assistant"}
"""Families that say one call a turn, and what sets several apart."""


def written(name: str, chat: Any, calls: tuple[ToolCall, ...]) -> tuple[bool, str, str]:
    """Whether a turn begins in thinking, what it says before its calls, and its calls."""
    thinks = chat.open([Message("user", "x")], TOOLS).in_thinking
    reasoning = "So." if thinks else None
    groups = [(call,) for call in calls] if name in ONE_CALL else [calls]
    turns = [
        chat.decode(chat.say(Message("assistant", "", tool_calls=group, reasoning=reasoning))).text for group in groups
    ]
    lead = turns[0][: turns[0].index(end) + len(end)] if thinks and (end := FAMILIES[name].think[1]) else ""
    bodies = [turn.removeprefix(lead).removesuffix("<|call|>").removesuffix("<|eot_id|>") for turn in turns]
    bodies[1:] = [body.removeprefix("<|start|>assistant") for body in bodies[1:]]
    return thinks, lead, ONE_CALL.get(name, "").join(bodies)


def check(turn: ParsedTurn, text: str) -> None:
    said = [(call.name, call.arguments) for call in CALLS]
    known = {tool.name for tool in TOOLS}
    ran = [
        # A mark that moved across a line break moves that with it.
        (item.name, {key: value.strip() if isinstance(value, str) else value for key, value in item.arguments.items()})
        for item in turn.items
        if isinstance(item, ToolCall) and item.name in known
    ]
    assert all(call in said for call in ran), (text, ran)
    answered = any(isinstance(item, CallError) or item.name not in known for item in turn.items)
    assert len(ran) >= len(said) or answered, (text, ran)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama-3"])  # it has no marks
def test_no_call_runs_with_arguments_of_another(name: str, format_of: Any, parser_of: Any) -> None:
    """One mark is lost, doubled or moved."""
    parser = parser_of(name)
    thinks, lead, body = written(name, format_of(name), CALLS)
    thinking = FAMILIES[name].think
    marks = [match.span() for match in MARK.finditer(body) if match.group() not in thinking]
    places = sorted({place for span in marks for place in span})

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(marks), st.sampled_from(["lost", "doubled", "moved"]), st.sampled_from(places))
    def run(mark: tuple[int, int], change: str, place: int) -> None:
        start, end = mark
        pieces = [(start, "" if change != "doubled" else body[start:end] * 2, end)]
        if change == "moved":
            if start <= place <= end:
                return
            pieces.append((place, body[start:end], place))
        text = body
        for first, new, last in sorted(pieces, reverse=True):
            text = text[:first] + new + text[last:]
        check(parser.parse(lead + text, tools=TOOLS, prefilled_thinking=thinks), text)

    check(parser.parse(lead + body, tools=TOOLS, prefilled_thinking=thinks), body)
    run()


TEXTS = st.text(st.sampled_from(" \n\tab\"'\\{}<>é你🙂"), max_size=12)


@pytest.mark.parametrize("name", FAMILIES)
def test_text_arguments_come_back_to_the_character(name: str, format_of: Any, parser_of: Any) -> None:
    """Indentation, line breaks and blanks at the ends of a text argument are part of it."""
    chat, parser = format_of(name), parser_of(name)
    thinks = chat.open([Message("user", "x")], TOOLS).in_thinking

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(TEXTS, TEXTS)
    def run(src: str, dst: str) -> None:
        call = ToolCall("move", {"src": src, "dst": dst}, id="functions.move:0")
        ids = chat.say(Message("assistant", "", tool_calls=(call,), reasoning="So." if thinks else None))
        turn = parser.parse_ids(ids, chat.decode(ids), tools=TOOLS, prompt_in_thinking=thinks)
        (read,) = turn.items
        assert isinstance(read, ToolCall), read
        assert read.arguments == call.arguments

    run()
