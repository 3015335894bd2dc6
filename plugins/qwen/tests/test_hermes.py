"""The parser `hermes`."""

from __future__ import annotations

import json

import pytest

from toolrl.types import CallError, ToolCall, ToolSpec
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.mend import MAX_MENDED
from toolrl_plugin_qwen.options import QwenOptions

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SUB = '<tool_call>\n{"name": "sub", "arguments": {"b": 2}}\n</tool_call>'


def block(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def parse(text, *, stopped_by=None, prefilled_thinking=False, tools=(), **options):
    parser = HermesParser(QwenOptions(**options))
    turn = parser.parse(text, tools=tools, stopped_by=stopped_by, prefilled_thinking=prefilled_thinking)
    assert all(item.raw == text[slice(*item.span)] for item in turn.items)
    assert turn.content == "".join(text[slice(*span)] for span in turn.content_spans)
    return turn


def read(text, **options):
    """Names of calls, kinds of errors."""
    return [item.name if isinstance(item, ToolCall) else item.kind for item in parse(text, **options).items]


def test_one_call():
    turn = parse(f"I add.\n{ADD}\nThen wait.")
    assert turn.items == (ToolCall("add", {"a": 1}, span=(7, 7 + len(ADD)), raw=ADD),)
    assert (turn.content, turn.reasoning, turn.status) == ("I add.\n\nThen wait.", None, "calls")


@pytest.mark.parametrize(
    "data", ["a </tool_call> b", "a <tool_call> b", "<think>a</think>", '"name": "x"', "</tool_call>"]
)
def test_tags_in_strings_are_data(data):
    body = json.dumps({"name": "write", "arguments": {"text": data}})
    turn = parse(block(body) + ADD)
    assert [item.name for item in turn.items] == ["write", "add"]
    assert turn.items[0].arguments == {"text": data}


@pytest.mark.parametrize(
    ("body", "kind", "name"),
    [
        ("", "empty", None),
        ("{oops}", "invalid_json", None),
        ('{"name": "f", "arguments": {"a": "x}}', "invalid_json", None),
        ('{"name": "f", "arguments": {}} and more', "extra_data", "f"),
        ("42", "not_object", None),
        ("{}", "missing_name", None),
        ('{"name": 5, "arguments": {}}', "bad_name", None),
        ('{"name": "f"}', "missing_arguments", "f"),
        ('{"name": "f", "arguments": []}', "bad_arguments", "f"),
        ('{"name": "f", "arguments": {"a": ' + "[" * 100_000, "too_deep", None),
    ],
)
def test_errors_stand_between_good_calls(body, kind, name):
    turn = parse(ADD + block(body) + SUB)
    first, wrong, last = turn.items
    assert (first.name, last.name) == ("add", "sub")
    assert isinstance(wrong, CallError)
    assert (wrong.kind, wrong.name, wrong.raw) == (kind, name, block(body))
    # The message shows the model the right form.
    assert "<tool_call>\n{" in wrong.message
    assert (name or "TOOL") in wrong.message


def test_a_truncated_call_never_runs():
    for end in range(1, len(ADD)):
        items = parse("go " + ADD[:end]).items
        assert not any(isinstance(item, ToolCall) for item in items), ADD[:end]


def test_a_stop_inside_a_string_lets_generation_go_on():
    text = '<tool_call>{"name": "write", "arguments": {"text": "see </tool_call>'
    assert parse(text, stopped_by="</tool_call>").status == "continue"
    assert read(text + '"}}</tool_call>', stopped_by="</tool_call>") == ["write"]
    assert parse(text, stopped_by=None).status == "calls"


def test_thinking_that_never_closes():
    text = f"<think>I call {ADD}"
    assert read(text) == ["add"]
    assert parse(text).reasoning == "I call "
    assert read(text, call_ends_thinking=False) == []
    assert parse("<think>endless").content == ""


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a": "x",},}',
        "{'name': 'f', 'arguments': {'a': 'x'}}",
        '{"name": "f", "arguments": {"a": "x"}, "n": None}',
        "{'name': 'f', 'arguments': {'a': 'x'}, 'why': 'it\\'s <tool_call> or </tool_call>'}",
        '{"name": "f", "arguments": "{\\"a\\": \\"x\\"}"}',
    ],
)
def test_repair(body):
    text = block(body) + ADD
    mended, untouched = parse(text, repair=True).items
    assert (mended.name, mended.arguments, mended.recovered) == ("f", {"a": "x"}, True)
    assert not untouched.recovered
    assert read(text)[-1] == "add"
    assert isinstance(parse(text).items[0], CallError)


def test_repair_guesses_nothing():
    for body in ('{"name": "f", "arguments": {"a": "x}}', "{name: f}", '{"name": "f", "arguments": {"a": 1}', "f(a=1)"):
        assert read(block(body) + ADD, repair=True) == ["invalid_json", "add"]
    assert read(block('{"name": "f", "arguments": "x"}'), repair=True) == ["bad_arguments"]


def test_repair_has_an_end():
    turn = parse(block("{'name': 'f', 'arguments': {'a': '" + "x" * (MAX_MENDED // 5) + "'}}") * 6, repair=True)
    assert [getattr(item, "recovered", None) for item in turn.items] == [True] * 5 + [None]


def test_lenient_json():
    tools = (ToolSpec("now", ""),)
    bare = '{"name": "now", "arguments": {}}'
    text = f"```json\n{bare}\n```\n{ADD}\n{bare}<think>\n{bare}</think>"
    assert read(text, tools=tools, lenient_json=True) == ["now", "add", "now"]
    assert read(text, tools=tools) == ["add"]
    assert read(text, lenient_json=True) == ["add"]
