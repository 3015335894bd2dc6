"""The parser `hermes`."""

from __future__ import annotations

import json

import pytest

from toolrl.types import CallError, CallRecord, Media, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.mend import MAX_MENDED
from toolrl_plugin_qwen.options import HermesOptions

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SUB = '<tool_call>\n{"name": "sub", "arguments": {"b": 2}}\n</tool_call>'


def block(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def parse(text, *, stopped_by=None, prefilled_thinking=False, tools=(), **options):
    parser = HermesParser(HermesOptions(**options))
    turn = parser.parse(text, tools=tools, stopped_by=stopped_by, prefilled_thinking=prefilled_thinking)
    assert all(item.raw == text[slice(*item.span)] for item in turn.items)
    assert turn.content == "".join(text[slice(*span)] for span in turn.content_spans)
    return turn


def read(text, **options):
    """Names of calls, kinds of errors."""
    return [item.name if isinstance(item, ToolCall) else item.kind for item in parse(text, **options).items]


def error(text, **options):
    (item,) = parse(text, **options).items
    assert isinstance(item, CallError)
    return item


def test_one_call():
    turn = parse(f"I add.\n{ADD}\nThen wait.")
    assert turn.items == (ToolCall("add", {"a": 1}, span=(7, 7 + len(ADD)), raw=ADD),)
    assert (turn.content, turn.reasoning, turn.status) == ("I add.\n\nThen wait.", None, "calls")


def test_calls_keep_their_order_and_are_not_merged():
    assert read(ADD + SUB + "text" + ADD + ADD) == ["add", "sub", "add", "add"]


@pytest.mark.parametrize("text", ["", "\n ", "plain", "<tool_calls>{}</tool_calls>", "<tool_call >{}", "</think>", "<"])
def test_no_call(text):
    turn = parse(text)
    assert (turn.items, turn.content, turn.status) == ((), text, "final")


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
        ('{"name": "f", "arguments": {"a": NaN}}', "invalid_json", None),
        ('{"name": "f", "arguments": {"a": 1e999}}', "invalid_json", None),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "invalid_json", None),
        ('\u00a0{"name": "f", "arguments": {}}', "invalid_json", None),
        ('```json\n{"name": "f", "arguments": {}}\n```', "invalid_json", None),
        ('{"name": "f", "arguments": {"a": 1}', "invalid_json", None),
        ('{"name": "f", "arguments": {"a": "x}}', "invalid_json", None),
        ('{"name": "f", "arguments": {}} and more', "extra_data", "f"),
        ('{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}', "extra_data", "f"),
        ('{"name": "f", "arguments": {}}}', "extra_data", "f"),
        ('[{"name": "f", "arguments": {}}]', "not_object", None),
        ("42", "not_object", None),
        ("null", "not_object", None),
        ('"f"', "not_object", None),
        ("{}", "missing_name", None),
        ('{"arguments": {}}', "missing_name", None),
        ('{"name": " ", "arguments": {}}', "missing_name", None),
        ('{"name": 5, "arguments": {}}', "bad_name", None),
        ('{"name": null, "arguments": {}}', "bad_name", None),
        ('{"name": ["f"], "arguments": {}}', "bad_name", None),
        ('{"name": "f"}', "missing_arguments", "f"),
        ('{"name": "f", "parameters": {}}', "missing_arguments", "f"),
        ('{"name": "f", "arguments": null}', "bad_arguments", "f"),
        ('{"name": "f", "arguments": []}', "bad_arguments", "f"),
        ('{"name": "f", "arguments": "{}"}', "bad_arguments", "f"),
        ('{"name": "f", "arguments": {"a": ' + "[" * 200 + "]" * 200 + "}}", "too_deep", None),
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


def test_messages_say_what_was_wrong():
    assert "comma stands before" in error(block('{"name": "f", "arguments": {"a": 1,}}')).message
    assert "raw line break" in error(block('{"name": "f", "arguments": {"a": "x\ny"}}')).message
    assert "too early" in error(block('{"name": "f", "arguments": {"a": 1}')).message
    assert "it is a string" in error(block('{"name": "f", "arguments": "{}"}')).message
    assert 'came "and more' in error(block('{"name": "f", "arguments": {}} and more')).message


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("<tool_call>", ["unclosed"]),
        ("<tool_call>\n{", ["unclosed"]),
        ('<tool_call>\n{"name": "f", "arguments": {}}', ["unclosed"]),
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_ca', ["unclosed"]),
        ('<tool_call>\n{"name": "f", "arguments": {}} so', ["unclosed"]),
        ('<tool_call>{"name": "f", "arguments": {}}' + ADD, ["unclosed", "add"]),
        (f"The `<tool_call>` tag: {ADD}", ["unclosed", "add"]),
        (f"<tool_call>\n{ADD}\n</tool_call>", ["unclosed", "add", "stray_close"]),
        (f"</tool_call>{ADD}", ["stray_close", "add"]),
        (f"{ADD}\n</tool_call>", ["add", "stray_close"]),
    ],
)
def test_tags_out_of_place(text, items):
    assert read(text) == items


def test_a_truncated_call_never_runs():
    for end in range(1, len(ADD)):
        items = parse("go " + ADD[:end]).items
        assert not any(isinstance(item, ToolCall) for item in items), ADD[:end]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (ADD.removesuffix("</tool_call>"), ["add"]),
        (ADD, ["add"]),
        ("<tool_call>\n", ["empty"]),
        ("<tool_call>\n{oops}", ["invalid_json"]),
        ('<tool_call>{"name": "f", "arguments": {}} x', ["extra_data"]),
        ('<tool_call>{"name": "f"}', ["missing_arguments"]),
        ('<tool_call>{"name": "f", "argum', ["invalid_json"]),
        ("no call", []),
    ],
)
def test_the_closing_tag_may_have_stopped_generation(text, items):
    assert read(text, stopped_by="</tool_call>") == items
    assert parse(text, stopped_by="</tool_call>").status == ("calls" if items else "final")


def test_another_stop_closes_nothing():
    assert read(ADD.removesuffix("</tool_call>"), stopped_by="```") == ["unclosed"]


def test_a_stop_inside_a_string_lets_generation_go_on():
    text = '<tool_call>{"name": "write", "arguments": {"text": "see </tool_call>'
    assert parse(text, stopped_by="</tool_call>").status == "continue"
    assert read(text + '"}}</tool_call>', stopped_by="</tool_call>") == ["write"]
    assert parse(text, stopped_by=None).status == "calls"


def test_a_string_left_open_swallows_no_call():
    open_string = '<tool_call>\n{"name": "f", "arguments": {"a": "x}}</tool_call>'
    assert read(f"{open_string}{ADD}") == ["invalid_json", "add"]
    assert read(f"{open_string}\n{ADD}") == ["invalid_json", "add"]
    assert read(f"{open_string} and then {ADD} {SUB}") == ["invalid_json", "add", "sub"]


def test_a_mistake_after_a_tag_in_a_string_is_one_error():
    text = block('{"name": "f", "arguments": {"a": "<tool_call> and </tool_call>"},}')
    assert error(text).raw == text


def test_thinking_is_not_searched():
    turn = parse(f"<think>try {ADD}<tool_call>{{bad</think>so {SUB}<think>{ADD}</think>!")
    assert [item.name for item in turn.items] == ["sub"]
    assert (turn.content, turn.reasoning) == ("so !", f"try {ADD}<tool_call>{{bad{ADD}")


def test_thinking_may_have_begun_in_the_prompt():
    assert read(f"try {ADD}</think>{SUB}", prefilled_thinking=True) == ["sub"]
    assert parse("still thinking", prefilled_thinking=True).reasoning == "still thinking"


def test_thinking_that_never_closes():
    text = f"<think>I call {ADD}"
    assert read(text) == ["add"]
    assert parse(text).reasoning == "I call "
    assert read(text, call_ends_thinking=False) == []
    assert parse("<think>endless").content == ""


def test_stops():
    assert HermesParser().stops("anything") == ()
    assert HermesParser(HermesOptions(stop_after_call=True)).stops("") == ("</tool_call>",)


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


def test_repair_takes_raw_line_breaks():
    (item,) = parse(block('{"name": "f", "arguments": {"a": "x\ny"}}'), repair=True).items
    assert (item.arguments, item.recovered) == ({"a": "x\ny"}, True)


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


def test_results_become_tool_messages():
    image = Media("image", "x.png")
    records = [
        CallRecord(ToolCall("add", {}, id="call_1"), ToolResult("3", media=(image,))),
        CallRecord(CallError("invalid_json", "Bad.", id="call_2"), ToolResult("Bad.", error="malformed")),
    ]
    first, second = HermesParser().render_results(records)
    assert (first.role, first.content, first.tool_call_id, first.name) == ("tool", "3", "call_1", "add")
    assert first.media == (image,)
    assert (second.role, second.content, second.tool_call_id, second.name) == ("tool", "Bad.", "call_2", None)
