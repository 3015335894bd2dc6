"""Turns, and what RLFactory's rules make of them: the stand-in for its manager, and the parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolrl.types import ToolCall
from toolrl_plugin_rlfactory.managers import QwenManager
from toolrl_plugin_rlfactory.parser import RLFactoryParser


def c(name: str = "a", args: Any = ..., **more: Any) -> str:
    call = {"name": name, "arguments": {"x": 1} if args is ... else args, **more}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


EXTRACT = "# Extract the tool name failed"
E, R = ("<empty>", None), ("<error>", None)
A = ("a", {"x": 1})
B = ("b", {"x": 1})
CASES: list[tuple[str, str, Any]] = [
    ("plain words", "answer", "plain words"),
    (c(), "actions", [A]),
    (c() + c("b"), "actions", [A, B]),
    ("I look.\n" + c() + "\nand wait", "actions", [A]),
    ('<tool_call>{"name": "a", "arguments": {"x": 1}}', "actions", [E]),
    ("<tool_call></tool_call>", "actions", [E]),
    ("oops </tool_call>", "actions", [R]),
    ("</tool_call>" + c(), "actions", [A]),
    (c() + "</tool_call>", "actions", [A]),
    (c() + "<tool_call>{]</tool_call>" + c("b"), "actions", [A, E, B]),
    ('<tool_call>{"name": "a"' + c(), "actions", [E, A]),
    ("<tool_call>" + c(), "actions", [A]),
    ("<tool_call>  \n" + c(), "actions", [A]),
    (c() + "<tool_call>", "actions", [A]),
    ("<tool_call>", "actions", [E]),
    ("<tool_call><tool_call>", "actions", [E]),
    ("<answer>Oslo</answer>", "answer", "<answer>Oslo</answer>"),
    ("<answer>1</answer> or <answer>2</answer>", "answer", "<answer>2</answer>"),
    (c() + "<answer>Oslo</answer>", "answer", "<answer>Oslo</answer>"),
    ("<answer>Oslo</answer>" + c(), "answer", "<answer>Oslo</answer>"),
    ("<answer>Oslo " + c(), "actions", [A]),
    (c() + "</answer>", "actions", [A]),
    ("<answer>a<answer>b</answer>", "answer", "<answer>a<answer>b</answer>"),
    ("</tool_call><answer>x</answer>", "answer", "<answer>x</answer>"),
    ("<tool_call>{'name': 'a', 'arguments': {'x': 1}}</tool_call>", "actions", [A]),
    ('<tool_call>{"name": "a", "arguments": {"x": 1,},}</tool_call>', "actions", [A]),
    ("<tool_call>{name: 'a', arguments: {x: 1}}</tool_call>", "actions", [A]),
    ('<tool_call>/* why */ {"name": "a", // so\n "arguments": {"x": 1}}</tool_call>', "actions", [A]),
    ('<tool_call>{"name": "a", "arguments": {"x": 0x10}}</tool_call>', "actions", [("a", {"x": 16})]),
    (c("a", '{"x": 1}'), "actions", [("a", '{"x": 1}')]),
    (c("a", [1, 2]), "actions", [("a", [1, 2])]),
    (c("a", None), "actions", [("a", None)]),
    (c("a", {"q": "Åse 东京 🙂"}), "actions", [("a", {"q": "Åse 东京 🙂"})]),
    (c("a", {"x": 1}, id=7), "actions", [A]),
    (c("", {"x": 1}), "actions", [("", {"x": 1})]),
    (c() + '<tool_call>{"name": "b", "argu', "actions", [A, E]),
    ('<tool_call>{"name": "a", "arguments": {"x": 1}} so</tool_call>', "actions", [E]),
    ('<tool_call>{"name": "a", "arguments": {}}{"name": "b", "arguments": {}}</tool_call>', "actions", [E]),
    ('<tool_call>```json\n{"name": "a", "arguments": {}}\n```</tool_call>', "actions", [E]),
    (c("a", {"x": "</tool_call>"}), "actions", [E]),
    (c("a", {"x": "<tool_call>"}), "actions", [E, E]),
    ('<tool_call>{"name": "b", "name": "a", "arguments": {"x": 1}}</tool_call>', "actions", [A]),
]


def plain(found: list[dict[str, str]] | str) -> Any:
    if isinstance(found, str):
        return found
    return [
        (tool["name"], None if tool["name"] in ("<empty>", "<error>") else json.loads(tool["args"])) for tool in found
    ]


@pytest.mark.parametrize(("text", "action", "found"), CASES)
def test_the_manager_and_the_parser(text: str, action: str, found: Any) -> None:
    said, tools = QwenManager({}).parse_response(response_content=text)
    assert (said, plain(tools)) == (action, found)
    turn = RLFactoryParser().parse(text, tools=())
    if action == "answer":
        inside = found.removeprefix("<answer>").removesuffix("</answer>").strip() if "</answer>" in found else None
        assert turn.answer == inside
        assert inside is not None or turn.items == ()
        return
    assert {tool["args"] for tool in tools if tool["name"] in ("<empty>", "<error>")} <= {EXTRACT}
    assert (turn.answer, turn.status, len(turn.items)) == (None, "calls", len(found))
    for item, (name, arguments) in zip(turn.items, found, strict=True):
        if isinstance(item, ToolCall):
            assert (item.name, item.arguments) == (name, arguments)
        else:
            # Arguments that are no object, and names of nothing, can't be called: RLFactory answers such calls so, too.
            assert arguments is None or not isinstance(arguments, dict) or not name
