"""Llama 3 writes calls as bare JSON objects: which objects are calls, which are answers, and which are errors."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.types import ToolCall, ToolSpec

TOOLS = (ToolSpec("look", ""), ToolSpec("now", ""))
LOOK = '{"name": "look", "parameters": {"query": "x"}}'
X = {"query": "x"}


def read(parser_of: Any, text: str, **more: Any) -> tuple[list[Any], str]:
    """The arguments of calls and the kinds of errors, and the content."""
    turn = parser_of("llama-3").parse(text, tools=TOOLS, **more)
    assert all(item.raw == text[slice(*item.span)] for item in turn.items)
    return [item.arguments if isinstance(item, ToolCall) else item.kind for item in turn.items], turn.content


@pytest.mark.parametrize(
    ("text", "items", "content"),
    [
        (f"<|python_tag|>{LOOK}", [X], ""),
        (f"<|python_tag|>{LOOK}; {LOOK}", [X, X], ""),
        (f"{LOOK}; {LOOK}", [X, X], ""),
        (f"[{LOOK}, {LOOK}]", [X, X], ""),
        (f"I will look. {LOOK}", [X], "I will look."),
        (f"So:\n```json\n{LOOK}\n```", [X], "So:"),
        (LOOK.replace("parameters", "arguments"), [X], ""),
        (f'{{"type": "function", {LOOK[1:]}', [X], ""),
        ('{"name": "now"}', [{}], ""),
        ('{"name": "other", "parameters": {}}', [{}], ""),
        ('{"name": "look", "parameters": {"query": "<|python_tag|>"}}', [{"query": "<|python_tag|>"}], ""),
    ],
)
def test_objects_that_call(text: str, items: list[Any], content: str, parser_of: Any) -> None:
    assert read(parser_of, text) == (items, content)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Alice", "age": 3}',
        '{"name": "John Doe", "aliases": ["J"]}',
        '{"answer": 42}',
        'The row is {"name": "Alice", "parameters": {"a": 1}}.',
        'The tool is {"name": "look", "description": "Looks."}.',
        f'{{"plan": [{LOOK}]}}',
        "int main() { return 0; }",
        '{"answer": ',
        "You can look(query) for it.",
    ],
)
def test_objects_that_answer(text: str, parser_of: Any) -> None:
    assert read(parser_of, text) == ([], text.strip())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"name": "look", "parameters": {"query": x}}', "invalid_json"),
        ('Sure! {"name": "look", "parameters": {"query": x}}', "invalid_json"),
        ('<|python_tag|>brave_search.call(query="x")', "malformed"),
        ("<|python_tag|>", "empty"),
        ('[look(query="x")]', "malformed"),
        ('<function=look>{"query": "x"}</function>', "malformed"),
        ('{"type": "function", "function": {"name": "look", "parameters": {}}}', "missing_name"),
        ('{"name": "look", "params": {"query": "x"}}', "missing_arguments"),
        ('{"name": "look", "parameters": {}, "arguments": {"query": "x"}}', "bad_arguments"),
        ('{"name": "look", "parameters": "x"}', "bad_arguments"),
        ('{"name": 5, "parameters": {}}', "missing_name"),
    ],
)
def test_objects_that_were_meant_as_calls(text: str, kind: str, parser_of: Any) -> None:
    assert read(parser_of, text)[0] == [kind]


def test_a_broken_object_costs_no_other(parser_of: Any) -> None:
    broken = '{"name": "look", "parameters": {"query": x}}'
    assert read(parser_of, f"{LOOK} {broken} {LOOK}")[0] == [X, "invalid_json", X]
    assert read(parser_of, f"{LOOK} {LOOK[:30]}", finish="length")[0] == [X, "unclosed"]
    assert read(parser_of, '{"a" ' * 100 + LOOK)[0] == ["malformed"]
