"""The parser `rlfactory`: what RLFactory's managers make of a turn, and what they answer."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import ConfigError
from toolrl.types import CallError, CallRecord, ParsedTurn, ToolCall, ToolResult
from toolrl_plugin_rlfactory.managers import ManagerConfig, QwenManager
from toolrl_plugin_rlfactory.options import EnvParserOptions
from toolrl_plugin_rlfactory.parser import RLFactoryParser
from toolrl_testing import make_build_context

GUIDE = Path(__file__).parent / "support" / "rlfactory_guide.py"
EXTRACT = "# Extract the tool name failed"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Oslo"}}\n</tool_call>'


def parsed(text: str, *, thinking: bool = False, **options: Any) -> ParsedTurn:
    return RLFactoryParser(EnvParserOptions(**options)).parse(text, tools=(), prefilled_thinking=thinking)


def kinds(text: str, **options: Any) -> list[str]:
    return [item.name if isinstance(item, ToolCall) else item.kind for item in parsed(text, **options).items]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("<tool_call>{", "unclosed", EXTRACT),
        ("<tool_call>", "unclosed", EXTRACT),
        ("<tool_call> </tool_call>", "empty", EXTRACT),
        ("<tool_call>{]</tool_call>", "invalid_json", EXTRACT),
        ('<tool_call>{"name": "a", "arguments": {}} more</tool_call>', "invalid_json", EXTRACT),
        ("<tool_call>[1]</tool_call>", "not_object", EXTRACT),
        ('<tool_call>{"arguments": {}}</tool_call>', "missing_name", EXTRACT),
        ('<tool_call>{"name": "a"}</tool_call>', "missing_arguments", EXTRACT),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "bad_name",
         "# Failed to find the tool 3 in the tool map"),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "bad_arguments",
         "Unexpected type of args: <class 'list'> (args: [1])"),
        ("so </tool_call> then", "stray_close", "# Failed to find the tool <error> in the tool map"),
    ],
)  # fmt: skip
def test_each_malformed_item_is_answered_as_there(text: str, kind: str, message: str) -> None:
    turn = parsed(text)
    assert [(item.kind, item.message) for item in turn.items if isinstance(item, CallError)] == [(kind, message)]
    assert turn.status == "calls"


def test_pieces_of_blanks_are_passed_over_unless_there_is_nothing_else() -> None:
    turn = parsed(f"a<tool_call> \n{CALL}b<tool_call>")
    assert [item.raw for item in turn.items] == [CALL]
    assert turn.content == "a<tool_call> \nb<tool_call>"
    turn = parsed("<tool_call><tool_call> ")
    assert [(item.span, item.raw) for item in turn.items] == [((11, 23), "<tool_call> ")]
    assert turn.content == "<tool_call>"


def test_what_cannot_be_read_hides_no_answer() -> None:
    assert parsed('<tool_call>{"name": "a" <answer>Oslo</answer>').answer == "Oslo"
    assert parsed("<answer>a</tool_call>b</answer>").answer == "a</tool_call>b"


@pytest.mark.parametrize("text", ["<think><answer>1</answer></think>2", CALL.replace("Oslo", "<answer>1</answer>")])
def test_thinking_and_arguments_hold_no_answer(text: str) -> None:
    assert parsed(text).answer is None


@pytest.mark.parametrize(
    "value",
    ["", "{", "{a}", "{a: 1", "[1,,2]", "{,}", "01", "1 2", "Infinity", "-NaN", "1e999", "'a\nb'", '"\\ud83d"', "/* 1",
     "[" * 100 + "'a'" + "]" * 100, "{1: 2}", "9" * 5000, "True", "1abc"],
)  # fmt: skip
def test_values_that_are_no_json5(value: str) -> None:
    (item,) = parsed(f"<tool_call>{{name: 'f', arguments: {{v: {value}\n}}}}</tool_call>").items
    assert isinstance(item, CallError)


@settings(max_examples=200)
@given(st.text(st.sampled_from("{}[]:,'\"\\/*0x1.e+-aN \n\ud800"), max_size=30))
def test_any_value_is_a_call_or_an_error(value: str) -> None:
    assert parsed(f"<tool_call>{{name: 'f', arguments: {{v: {value}\n}}}}</tool_call>").items


def test_thinking_is_no_place_for_calls_but_for_whole_text() -> None:
    text = f"<think>{CALL}<answer>1</answer></think>hi"
    turn = parsed(text)
    assert (turn.items, turn.content, turn.answer, turn.status) == ((), "hi", None, "final")
    assert turn.reasoning == f"{CALL}<answer>1</answer>"
    assert (kinds(text, whole_text=True), parsed(text, whole_text=True).answer) == (["search"], "1")
    turn = parsed(f"hm {CALL}</think>{CALL}", thinking=True)
    assert (turn.reasoning, len(turn.items)) == (f"hm {CALL}", 1)
    assert parsed("hm", thinking=True).reasoning == "hm"


PIECES = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>", "x", "\n", CALL, "{a:1}"]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join), st.booleans())
def test_every_character_is_somewhere(text: str, whole_text: bool) -> None:
    turn = parsed(text, whole_text=whole_text)
    spans = sorted([*(item.span for item in turn.items), *turn.content_spans])
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    left = len(text) - sum(end - start for start, end in spans)
    tags = 0 if turn.reasoning is None else len(turn.reasoning) + text.count("<think>") * 7 + text.count("</think>") * 8
    assert 0 <= left <= tags


def test_managers_give_the_form_of_rlfactory() -> None:
    manager = QwenManager({})
    assert manager.parse_tools(CALL) == [{"name": "search", "args": '{\n    "query": "Oslo"\n}'}]
    assert manager.parse_tools("x</tool_call>")[0]["name"] == "<error>"  # type: ignore[index]
    assert manager.parse_tools('<tool_call>{"name": "a", "arguments": "x"}</tool_call>') == [
        {"name": "a", "args": '"x"'}
    ]
    assert manager.parse_tools("<tool_call>{name: 3, arguments: [1]}</tool_call>") == [
        {"name": "3", "args": "[\n    1\n]"}
    ]


def test_a_config_is_read_by_key_and_by_attribute() -> None:
    config = ManagerConfig({"a": 1, "parallel_sse_tool_call": {"is_enabled": True}})
    assert (config.a, config["a"], config.get("b", 2), getattr(config, "b", 3)) == (1, 1, 2, 3)
    assert config.parallel_sse_tool_call.is_enabled is True
    config.b = 4
    assert copy.deepcopy(config) == {**config} == {"a": 1, "b": 4, "parallel_sse_tool_call": {"is_enabled": True}}
    assert not isinstance(config, dict)
    with pytest.raises(AttributeError, match="give it in the option"):
        _ = config.missing


def test_answers_are_worded_as_there() -> None:
    call = ToolCall("search", {"query": "Oslo"})
    good, bad = ToolResult("717710"), ToolResult("down", error="timeout")
    unknown, own = (
        ToolResult("There is none.", error="unknown_tool"),
        ToolResult("# Execute the tool search successed\nx"),
    )
    records = [CallRecord(call, result) for result in (good, bad, unknown, own)]
    records.append(CallRecord(CallError("empty", EXTRACT), ToolResult(EXTRACT, error="malformed")))
    contents = [message.content for message in RLFactoryParser().render_results(records)]
    assert contents == [
        "# Execute the tool search successed\n  - The args are: {'query': 'Oslo'}\n  - The result is:\n717710",
        "# Execute the tool search failed\n  - The original args are: {'query': 'Oslo'}\n  - Error message:\ndown",
        "# Failed to find the tool search in the tool map\nThere is none.",
        "# Execute the tool search successed\nx",
        EXTRACT,
    ]


def test_a_manager_of_ones_own_reads_the_turn() -> None:
    options = {"tool_manager": f"{GUIDE}:SquareManager"}
    text = 'so [[lookup {"city": "Oslo"}]] and [[lookup nonsense]] and [[lookup [1]]]'
    turn = parsed(text, **options)
    assert [type(item) for item in turn.items] == [ToolCall, CallError, CallError]
    assert isinstance(turn.items[0], ToolCall)
    assert (turn.items[0].arguments, turn.items[0].raw) == ({"city": "Oslo"}, text)
    assert parsed("nothing", **options) == ParsedTurn(content="nothing")
    broken = parsed("BROKEN", **options).items
    assert [item.message for item in broken if isinstance(item, CallError)] == [
        "# Extract the tools failed due to: ValueError: no brackets"
    ]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere_at_all:X", "can't be imported"),
        ("no/such/file.py:X", "there is no Python file"),
        (f"{GUIDE}:Nobody", "has no class 'Nobody'"),
    ],
)
def test_a_class_that_is_not_there(reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RLFactoryParser(EnvParserOptions(tool_manager=reference), make_build_context("rlfactory", where="parser"))


def test_options_that_can_not_be() -> None:
    for options in ({"tool_manager": "qwen2_5_vl"}, {"env": "search"}):
        with pytest.raises(ValueError, match="should match pattern"):
            EnvParserOptions(**options)


# Turns, and what RLFactory's rules make of them: the stand-in for its manager, and the parser.


def c(name: str = "a", args: Any = ..., **more: Any) -> str:
    call = {"name": name, "arguments": {"x": 1} if args is ... else args, **more}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


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
