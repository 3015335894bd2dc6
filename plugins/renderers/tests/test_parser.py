"""What the parser reads in each family's own syntax: calls, broken calls between good ones, what the library drops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.types import CallError, Message, ParsedTurn, ToolCall, ToolSpec
from toolrl_plugin_chat.control import Shield, finder
from toolrl_plugin_renderers.families import FAMILIES

PARALLEL = [name for name in FAMILIES if name not in ("llama-3", "gpt-oss")]
"""Families that write several calls in a turn."""
QUERIES = ("eins – 你好 🙂", "zwei", 'drei "x" \\ </b>')

BREAK: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("qwen3", "qwen3-vl"), ('"zwei"', "zwei")),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1", "kimi-k2", "kimi-k2.5", "inkling"), ('"zwei"', "zwei")),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), ("zwei\n</parameter>", "zwei")),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), ("zwei\n</parameter>", "zwei")),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), ("zwei</arg_value>", "zwei")),
    **dict.fromkeys(("laguna-xs.2", "laguna-xs-2.1", "laguna-s-2.1", "laguna-m.1"), ("zwei</arg_value>", "zwei")),
    "hy3": ("zwei</arg_value:opensource>", "zwei"),
    "deepseek-v4": ("zwei</｜DSML｜parameter>", "zwei"),
    "minimax-m2": ("zwei</parameter>", "zwei"),
    "gemma4": ('zwei<|"|>', "zwei"),
}
"""What makes the second of three calls unreadable: a text and what stands for it."""

EMPTY = {
    **dict.fromkeys(
        (name for name in FAMILIES if FAMILIES[name].opens == ("<tool_call>",)), "<tool_call>\n</tool_call>"
    ),
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource></tool_call:opensource>\n</tool_calls:opensource>",
    "minimax-m2": "<minimax:tool_call>\n</minimax:tool_call>",
    "gemma4": "<|tool_call><tool_call|>",
    "deepseek-v4": "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>",
    **dict.fromkeys(
        ("deepseek-v3", "deepseek-r1"),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    "gpt-oss": "<|channel|>commentary to=functions.look<|message|><|call|>",
    "inkling": "<|message_model|>look<|content_invoke_tool_json|><|end_message|>",
}


def calls(*queries: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("look", {"query": query}, id=f"call_{n}") for n, query in enumerate(queries, 1))


class Family:
    """One family's chat format and parser, and a turn that calls tools."""

    def __init__(self, name: str, format_of: Any, parser_of: Any, tools: tuple[ToolSpec, ...]) -> None:
        self.name, self.tools = name, tools
        self.chat, self.parser = format_of(name), parser_of(name)
        self.thinks = self.chat.open([Message("user", "x")], tools).in_thinking
        self.reasoning = "I look it up." if self.thinks else None

    def ids(self, *queries: str) -> tuple[int, ...]:
        return self.chat.say(Message("assistant", "", tool_calls=calls(*queries), reasoning=self.reasoning))

    def text(self, *queries: str) -> str:
        return self.chat.decode(self.ids(*queries)).text

    def read_ids(self, ids: tuple[int, ...], **more: Any) -> ParsedTurn:
        decoded = self.chat.decode(ids)
        turn = self.parser.parse_ids(ids, decoded, tools=self.tools, prompt_in_thinking=self.thinks, **more)
        check(turn, decoded.text)
        return turn

    def read(self, text: str, **more: Any) -> ParsedTurn:
        more.setdefault("prefilled_thinking", self.thinks)
        turn = self.parser.parse(text, tools=self.tools, **more)
        check(turn, text)
        return turn


def check(turn: ParsedTurn, text: str) -> None:
    """Items in order, each with its text; content and items share no character."""
    end = 0
    for item in turn.items:
        assert end <= item.span[0] <= item.span[1] <= len(text)
        assert item.raw == text[slice(*item.span)]
        end = item.span[1]
    spans = sorted([*turn.content_spans, *(item.span for item in turn.items)])
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert turn.content == "".join(text[slice(*span)] for span in turn.content_spans)
    assert turn.status == ("calls" if turn.items else "final")


@pytest.fixture
def family(request: pytest.FixtureRequest, format_of: Any, parser_of: Any, look: ToolSpec) -> Family:
    return Family(request.param, format_of, parser_of, (look,))


every = pytest.mark.parametrize("family", FAMILIES, indirect=True)
parallel = pytest.mark.parametrize("family", PARALLEL, indirect=True)


@parallel
def test_a_broken_call_between_good_ones(family: Family) -> None:
    text = family.text(*QUERIES)
    old, new = BREAK[family.name]
    assert text.count(old) == 1
    first, wrong, last = family.read(text.replace(old, new)).items
    assert isinstance(first, ToolCall)
    assert isinstance(last, ToolCall)
    assert (first.arguments["query"], last.arguments["query"]) == (QUERIES[0], QUERIES[2])
    assert isinstance(wrong, CallError), wrong
    assert "zwei" in wrong.raw
    assert wrong.kind in ("invalid_json", "malformed")
    assert "Write a call as\n" in wrong.message


@every
def test_a_call_that_is_cut_off(family: Family) -> None:
    queries = QUERIES[:2] if family.name in PARALLEL else QUERIES[:1]
    ids = family.ids(*queries)
    text = family.chat.decode(ids).text
    last = family.read_ids(ids).items[-1]
    where = text.index(queries[-1][:3], last.span[0])
    cut = next(n for n in range(len(ids)) if family.chat.decode(ids[:n]).text.startswith(text[: where + 2]))
    turn = family.read_ids(ids[:cut], finish="length")
    *good, wrong = turn.items
    # In MiniMax's format one tag closes all calls of a turn.
    assert [item.name for item in good] == ["look"] * (0 if family.name == "minimax-m2" else len(queries) - 1)
    assert all(isinstance(item, ToolCall) for item in good)
    assert isinstance(wrong, CallError)
    assert wrong.kind == "unclosed"


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama-3"], indirect=True)
def test_an_empty_call(family: Family) -> None:
    closing = family.chat.decode(family.ids("x")).text.partition(family.reasoning)[2] if family.thinks else ""
    lead = FAMILIES[family.name].thinking_ends if family.thinks else ""
    turn = family.read(f"So.{lead}{EMPTY[family.name]}")
    (item,) = turn.items
    assert isinstance(item, CallError), (turn, closing)
    assert item.kind in ("empty", "missing_name", "malformed")
    if family.name not in ("minimax-m2", "deepseek-v3", "deepseek-r1"):
        assert item.kind == "empty"


@every
def test_a_call_in_closed_thinking_is_a_draft(family: Family) -> None:
    begin, end = FAMILIES[family.name].think
    if not begin or family.name in ("gpt-oss", "inkling", "deepseek-v4") or family.name.startswith("glm"):
        pytest.skip("no thinking, or thinking that a call ends")
    drafted = family.chat.decode(family.ids("x")).text.removeprefix(family.reasoning or "")
    drafted = drafted.partition(end)[2] if family.thinks else drafted
    lead = "" if family.thinks else begin
    turn = family.read(f"{lead}\nI may say {drafted}{end}\nDone.")
    assert turn.items == ()
    assert turn.content == "Done."


@every
def test_calls_are_read_in_order_from_ids_and_from_their_text(family: Family) -> None:
    queries = QUERIES if family.name in PARALLEL else QUERIES[:1]
    ids = family.ids(*queries)
    turn = family.read_ids(ids)
    assert [item.arguments for item in turn.items if isinstance(item, ToolCall)] == [{"query": q} for q in queries]
    assert all(query in item.raw for query, item in zip(queries[:2], turn.items, strict=False))
    assert (turn.content, (turn.reasoning or "").strip()) == ("", family.reasoning or "")
    assert family.read(family.chat.decode(ids).text) == turn


# The library finds DeepSeek V4's marks in the decoded text.
@pytest.mark.parametrize("family", [name for name in PARALLEL if name != "deepseek-v4"], indirect=True)
def test_spelled_marks_open_no_call(family: Family) -> None:
    """The same characters by ordinary tokens are text, where the family's marks are tokens."""
    text = family.text("x").removeprefix(family.reasoning or "")
    codec, shield = family.chat._codec, Shield()
    spelled = codec.encode_shielded(shield.hide(f"So {text}", finder(codec.added)), shield)
    assert not set(spelled) & set(codec.added.values())
    turn = family.read_ids(tuple(spelled))
    assert not any(isinstance(item, ToolCall) for item in turn.items)


LOST = {
    "qwen3.5": ("<function=look>\n<parameter=query>\nx\n</parameter>\n</function>", "malformed"),
    "qwen3": ('{"name": "look", "arguments": {"query": "x"}}\n</tool_call>', "stray_close"),
    "deepseek-v3": (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{}\n```<｜tool▁call▁end｜>",
        "malformed",
    ),
    "kimi-k2": ("<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "malformed"),
    "llama-3": ('{"name": "look", "parameters": {"query": x}}', "invalid_json"),
    "minimax-m2": ('<invoke name="look">\n<parameter name="query">x</parameter>\n</invoke>', "malformed"),
    "gpt-oss": ("<|channel|>commentary to=python<|message|>1+1", "malformed"),
    "inkling": ("<|content_text|>So <|content_invoke_tool_json|>{}<|end_message|>", "malformed"),
    "hy3": ("</tool_call:opensource>", "stray_close"),
}
"""Calls that the library passes over without a word."""


@pytest.mark.parametrize("family", LOST, indirect=True)
def test_what_the_library_drops_is_an_error(family: Family) -> None:
    text, kind = LOST[family.name]
    lead = f"So.{FAMILIES[family.name].thinking_ends}" if family.thinks else ""
    turn = family.read(f"{lead}{text}")
    (item,) = turn.items
    assert isinstance(item, CallError), item
    assert item.kind == kind


def test_an_invoke_that_is_not_closed_keeps_the_others(format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    """MiniMax: the library finds whole `<invoke>`s and gives each the place of their block."""
    family = Family("minimax-m2", format_of, parser_of, (look,))
    text = family.text(*QUERIES)
    first, _, third = family.read(text).items
    assert first.raw.startswith("<invoke")
    assert first.raw.endswith("</invoke>")
    broken = text.replace(third.raw, third.raw.removesuffix("</invoke>"))
    assert [type(item).__name__ for item in family.read(broken).items] == ["ToolCall", "ToolCall", "CallError"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"name": 5, "arguments": {}}', "missing_name"),
        ('{"name": "two\\nlines", "arguments": {}}', "bad_name"),
        ('{"name": "look", "arguments": "x"}', "bad_arguments"),
        ('{"name": "look", "arguments": [1]}', "bad_arguments"),
        ('{"name": "look", "arguments": {"query": NaN}}', "bad_arguments"),
        ('{"name": "look", "arguments": {"query": "\\ud800"}}', "bad_arguments"),
        ('{"name": "look", "arguments": {"query": ' + "[" * 200 + "]" * 200 + "}}", "too_deep"),
        ('{"arguments": {}}', "missing_name"),
        ("[1, 2]", "not_object"),
        ('{"name": "look", "arguments": {},}', "invalid_json"),
        ("", "empty"),
    ],
)
def test_what_the_library_lets_through(format_of: Any, parser_of: Any, look: ToolSpec, body: str, kind: str) -> None:
    family = Family("qwen3", format_of, parser_of, (look,))
    good = family.text("x")
    first, wrong, last = family.read(f"{good}<tool_call>{body}</tool_call>{good}").items
    assert isinstance(wrong, CallError), wrong
    assert wrong.kind == kind
    assert isinstance(first, ToolCall)
    assert isinstance(last, ToolCall)


@pytest.mark.parametrize("family", ["qwen3.5", "glm-5", "laguna-xs.2", "minimax-m2"], indirect=True)
def test_bare_values_that_fit_no_schema_are_for_the_schema_check(family: Family) -> None:
    """The library calls them invalid JSON; the call stands, and the value stays text."""
    text = family.text("x").replace("query", "undeclared")
    (call,) = family.read(text).items
    assert isinstance(call, ToolCall), call
    assert call.arguments == {"undeclared": "x"}


KINDS = {
    "truth": ("boolean", True), "whole": ("integer", 3), "real": ("number", 1.5), "list": ("array", [1, "a", False]),
    "object": ("object", {"a": [None]}), "text": ("string", "12"), "either": (["string", "null"], "x"),
    "nothing": ("null", None), "word": ("string", "True"),
}  # fmt: skip


@every
def test_values_of_every_kind_come_back(family: Family) -> None:
    """Also where the family writes them bare, or as Python does, and the schema says what they mean."""
    properties = {name: {"type": kind} for name, (kind, _) in KINDS.items()}
    family.tools = (ToolSpec("look", "", {"type": "object", "properties": properties}),)
    call = ToolCall("look", {name: value for name, (_, value) in KINDS.items()}, id="functions.look:0")
    ids = family.chat.say(Message("assistant", "", tool_calls=(call,), reasoning=family.reasoning))
    (read,) = family.read_ids(ids).items
    assert isinstance(read, ToolCall), read
    assert read.arguments == call.arguments


def test_offsets_of_a_text_that_its_tokens_do_not_decode_to(parser_of: Callable[..., Any], look: ToolSpec) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"query": "x"}}\n</tool_call>'
    text = f"\ud800 broken \udc00{call}\ud800{call}"
    turn = parser_of("qwen3").parse(text, tools=(look,))
    check(turn, text)
    assert [item.raw for item in turn.items] == [call, call]
