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

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
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

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(TEXTS, TEXTS)
    def run(src: str, dst: str) -> None:
        call = ToolCall("move", {"src": src, "dst": dst}, id="functions.move:0")
        ids = chat.say(Message("assistant", "", tool_calls=(call,), reasoning="So." if thinks else None))
        turn = parser.parse_ids(ids, chat.decode(ids), tools=TOOLS, prompt_in_thinking=thinks)
        (read,) = turn.items
        assert isinstance(read, ToolCall), read
        assert read.arguments == call.arguments

    run()


def read(name: str, parser_of: Any, text: str) -> list[Any]:
    """The arguments of the calls in a turn, and the kinds of its errors."""
    thinks = name in ("glm-4.5", "glm-5")
    turn = parser_of(name).parse(f"</think>{text}" if thinks else text, tools=TOOLS, prefilled_thinking=thinks)
    return [item.arguments if isinstance(item, ToolCall) else item.kind for item in turn.items]


MOVE = "<tool_call><function=move><parameter=src>a</parameter></function>"
SHOW = "<function=show><parameter=path>b</parameter></function></tool_call>"
GLM_MOVE = "<tool_call>move<arg_key>src</arg_key><arg_value>a</arg_value>"
GLM_SHOW = "<tool_call>show<arg_key>path</arg_key><arg_value>b</arg_value></tool_call>"
KIMI = "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{}"
SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>"
)
INVOKE = '<invoke name="show"><parameter name="path">b</parameter></invoke></minimax:tool_call>'
DSML = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="show">{}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen3.5", f"{MOVE}<tool_call>{SHOW}", ["unclosed", {"path": "b"}]),
        ("qwen3.5", f"<tool_call><function=move><tool_call>{SHOW}", ["unclosed", {"path": "b"}]),
        ("qwen3.5", f"{MOVE}{SHOW}", [{"src": "a"}, {"path": "b"}]),
        ("qwen3.5", f"{MOVE.removesuffix('</function>')}{SHOW}", ["malformed", {"path": "b"}]),
        ("glm-5", f"{GLM_MOVE}{GLM_SHOW}", ["unclosed", {"path": "b"}]),
        (
            "minimax-m2",
            f'<minimax:tool_call><invoke name="move"><parameter name="src">a</parameter>{INVOKE}',
            ["malformed", {"path": "b"}],
        ),
        (
            "qwen3",
            '<tool_call>{"name": "move", "arguments": {"src": "a"}}'
            '<tool_call>{"name": "show", "arguments": {"path": "b"}}</tool_call>',
            ["unclosed", {"path": "b"}],
        ),
        (
            "kimi-k2",
            SECTION.format(KIMI.format("move", '{"src": "a"}') + KIMI.format("show", '{"path": "b"}<|tool_call_end|>')),
            ["unclosed", {"path": "b"}],
        ),
        (
            "kimi-k2",  # the first call lost what its name ends with
            SECTION.format(
                '<|tool_call_begin|>functions.move:0{"src": "a"}<|tool_call_end|>'
                + KIMI.format("show", '{"path": "b"}<|tool_call_end|>')
            ),
            ["malformed", {"path": "b"}],
        ),
        # Calls that lost all their marks, or all but those inside.
        ("qwen3", '{"name": "move", "arguments": {"src": "a"}}', ["malformed"]),
        ("qwen3.5", 'So:\n```json\n{"name": "move", "arguments": {"src": "a"}}\n```', ["malformed"]),
        (
            "qwen3",
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n{"name": "move", "arguments": {"src": "a"}}',
            [{}, "malformed"],
        ),
        ("qwen3", 'The row is {"name": "Alice", "arguments": {"a": 1}}.', []),
        ("qwen3", 'It is {"name": "move", "description": "Moves."}.', []),
        ("kimi-k2", SECTION.format("functions.now:0<|tool_call_argument_begin|>{}"), ["malformed"]),
        (
            "kimi-k2",
            SECTION.format(
                KIMI.format("now", "{}<|tool_call_end|>") + 'functions.show:1<|tool_call_argument_begin|>{"path": "b"}'
            ),
            [{}, "malformed"],
        ),
        ("laguna-m.1", "move<arg_key>src</arg_key><arg_value>a</arg_value>", ["malformed"]),
        ("gemma4", "call:now{}", ["malformed"]),
        ("gemma4", "<|tool_call>call:now{}<tool_call|>call:now{}", [{}, "malformed"]),
        ("inkling", '<|message_model|>now<{"name":"now","args":{}}<|end_message|>', ["malformed"]),
        ("qwen3.5", f"{MOVE}<function=now></tool_call>", [{"src": "a"}, "malformed"]),
        # Keys and values.
        ("glm-5", "<tool_call>now</tool_call>src</arg_key><arg_value>b</arg_value>", ["malformed"]),
        (
            "glm-5",
            "<tool_call>move<arg_key>src</arg_key><arg_key>dst</arg_key><arg_value>b</arg_value></tool_call>",
            ["malformed"],
        ),
        (
            "laguna-m.1",
            "<tool_call>move<arg_key>src</arg_key><arg_key>dst</arg_key><arg_value>b</arg_value></tool_call>",
            ["malformed"],
        ),
        ("glm-5", "<tool_call>now<arg_value>b</arg_value></tool_call>", ["malformed"]),
        ("glm-5", "<tool_call>move<arg_key>src</arg_key> so <arg_value>b</arg_value></tool_call>", ["malformed"]),
        ("glm-5", "<tool_call>now</tool_call><arg_key>src</arg_key><arg_value>b</arg_value>", ["malformed"]),
        (
            "qwen3.5",
            "<tool_call><function=move><parameter=src>\nx\n<parameter=dst>\ny\n</parameter></function></tool_call>",
            ["malformed"],
        ),
        ("qwen3.5", MOVE.replace("</function>", "<parameter=src>b</parameter></function></tool_call>"), ["malformed"]),
        ("minimax-m2", f"<minimax:tool_call>{INVOKE.replace('<parameter', 'so<parameter')}", ["malformed"]),
        ("deepseek-v4", DSML.format('<｜DSML｜parameter name="path">a</｜DSML｜parameter>'), ["malformed"]),
        (
            "deepseek-v4",
            DSML.format('<｜DSML｜parameter name="path" string="true">a</｜DSML｜parameter>'),
            [{"path": "a"}],
        ),
        ("qwen3", '<tool_call>{"name": "move", "parameters": {"src": "a"}}</tool_call>', ["missing_arguments"]),
        # Sections after the first are read, and what stands between them isn't.
        ("kimi-k2", SECTION.format(KIMI.format("now", "{}<|tool_call_end|>")) * 2, [{}, {}]),
        ("deepseek-v3", DEEPSEEK * 2, [{}, {}]),
        # Marks and tags in values of whole calls are text.
        (
            "qwen3",
            '<tool_call>{"name": "move", "arguments": {"src": "<tool_call>"}}</tool_call>',
            [{"src": "<tool_call>"}],
        ),
        ("glm-5", GLM_SHOW.replace(">b<", ">a <tool_call> b<"), [{"path": "a <tool_call> b"}]),
        ("qwen3.5", f"<tool_call>{SHOW.replace('>b<', '>a <tool_call> b<')}", [{"path": "a <tool_call> b"}]),
        (
            "qwen3.5",
            f"<tool_call>{SHOW.replace('>b<', '>f(<parameter=x>, <b>)<')}",
            [{"path": "f(<parameter=x>, <b>)"}],
        ),
        (
            "minimax-m2",
            f"<minimax:tool_call>{INVOKE.replace('>b<', '> <a href=x>1</a> <')}",
            [{"path": " <a href=x>1</a> "}],
        ),
        # Bare values by the schema, as Python writes them too.
        (
            "qwen3.6",
            "<tool_call><function=show><parameter=depth>\n 3 \n</parameter></function></tool_call>",
            [{"depth": 3}],
        ),
    ],
)
def test_what_is_read_of_broken_calls(name: str, text: str, expected: list[Any], parser_of: Any) -> None:
    assert read(name, parser_of, text) == expected
