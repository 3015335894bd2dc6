"""Calls without tags."""

from __future__ import annotations

import pytest

from toolrl.parsing import MAX_ITEMS
from toolrl.types import CallError, ParsedTurn, ToolCall, ToolSpec
from toolrl_plugin_qwen.bare_calls import MAX_BROKEN, MAX_TRIED, take_bare_calls

TOOLS = (ToolSpec("f", ""), ToolSpec("g", ""))
CALL = '{"name": "f", "arguments": {"a": 1}}'


def take(text, items=(), **options):
    parsed = ParsedTurn(items=items, content=text, content_spans=((0, len(text)),) if text else ())
    return take_bare_calls(parsed, text, TOOLS, "Write it right.", **options)


def read(turn):
    return [item.name if isinstance(item, ToolCall) else (item.kind, item.name) for item in turn.items]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, ""),
        (f"Sure:\n{CALL}\nWait.", "Sure:\n\nWait."),
        (f"```json\n{CALL}\n```", ""),
        (f"a\n```\n{CALL}\n```\nb", "a\n\nb"),
        (f"```xml\n<tools>\n[{CALL}]\n</tools>\n```\nend", "\nend"),
        (f"  {CALL}", ""),
        ('{\n  "name": "f",\n  "arguments": {"a": 1}\n}', ""),
    ],
)
def test_a_call_of_a_known_tool(text, content):
    turn = take(text)
    assert [(item.name, item.arguments) for item in turn.items] == [("f", {"a": 1})]
    assert (turn.content, turn.status) == (content, "calls")
    assert all(item.raw == text[slice(*item.span)] for item in turn.items)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "h", "arguments": {}}',
        '{"name": "f"}',
        '{"name": "f", "age": 3}',
        f"like {CALL} in a line",
        '{"a": 1}',
        '{"name": "f", "arguments": {}, "name": "h"}',
        "{\"name': 'f', 'arguments': \": 1}",
        '{\'name": "f", "arguments": \': 1}',
        "",
    ],
)
def test_other_json_stays_content(text):
    turn = take(text)
    assert (turn.items, turn.content, turn.status) == ((), text, "final")


def test_several_in_one_line():
    turn = take(f"[{CALL}, {CALL}]\n{CALL}{CALL}; {CALL}")
    assert (read(turn), turn.content) == (["f"] * 4, f", \n; {CALL}")
    assert [item.raw for item in turn.items] == [f"[{CALL}", f"{CALL}]", CALL, CALL]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"a": 1,}}',
        "{'name': 'f', 'arguments': {'a': 1}}",
        "{'name': 'f', 'arguments': {'a': 1,},}",
    ],
)
def test_repair(text):
    (item,) = take(f"```json\n{text}\n```", repair=True).items
    assert (item.name, item.arguments, item.recovered) == ("f", {"a": 1}, True)
    assert read(take(text)) == [("invalid_json", "f")]
    assert not take(CALL, repair=True).items[0].recovered


def test_repair_has_an_end():
    long = "{'name': 'f', 'arguments': {'a': '" + "x" * (MAX_TRIED // 3) + "'}}\n"
    assert [item.name for item in take(long * 4, repair=True).items if isinstance(item, ToolCall)] == ["f"] * 3
    in_vain = "{'name': 'f', 'arguments': {'a': '" + "x" * (2 * MAX_TRIED) + "\n"
    turn = take(f"{in_vain}{in_vain}{CALL}\n{long}", repair=True)
    assert read(turn) == [("invalid_json", "f")] * 2 + ["f", ("invalid_json", "f")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"name": "f", "arguments": {"a": }}', "invalid_json"),
        ('{"name": "f", "arguments": {"a": "x', "unclosed"),
        ('{"name": "f", "arguments": {"a": 1', "unclosed"),
        ('{"name": "f", "arguments": 5}', "bad_arguments"),
        ('{"name": "f", "arguments": ' + "[" * 500, "too_deep"),
    ],
)
def test_a_broken_call_is_an_error(text, kind):
    turn = take(text)
    assert read(turn)[0] == (kind, "f")
    assert "Write it right." in turn.items[0].message


def test_broken_ones_are_given_up_on():
    turn = take('{"name": "f", "arguments": !}\n' * 100)
    assert len(turn.items) == MAX_BROKEN
    assert turn.content.count("name") == 100 - MAX_BROKEN


def test_the_limit_of_items_holds():
    turn = take(f"{CALL}\n" * 400)
    assert len(turn.items) == MAX_ITEMS + 1
    assert isinstance(turn.items[-1], CallError)
    assert turn.items[-1].kind == "too_many_calls"
    assert turn.items[-1].span == (turn.items[-2].span[1] + 1, len(CALL + "\n") * 400)
    assert turn.content_spans[-1][1] == turn.items[-1].span[0]
    assert turn.content == "\n" * MAX_ITEMS
