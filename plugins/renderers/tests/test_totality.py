"""Nothing that a model writes makes the parser raise, lose a call or run for long."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.types import CallError, Decoded, Message, ToolCall, ToolSpec
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_plugin_renderers.parser import MAX_MARKS
from toolrl_testing.checks import parsers

every = pytest.mark.parametrize("name", FAMILIES)
PATIENCE = 20.0
"""Seconds of this thread's processor time. A turn takes less than one; a busy machine may take longer."""


def fuzz(examples: int) -> Any:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def pieces(name: str, chat: Any, tools: tuple[ToolSpec, ...]) -> list[str]:
    """Texts that mean something to a family, and parts of its calls."""
    family = FAMILIES[name]
    thinks = "So." if chat.open([Message("user", "x")], tools).in_thinking else None
    call = ToolCall("look", {"query": "x", "limit": 3}, id="functions.look:0")
    turn = chat.decode(chat.say(Message("assistant", "", tool_calls=(call,), reasoning=thinks))).text
    marks = [*family.opens, *family.closes, *family.sections, *family.think, family.thinking_ends]
    marks += re.findall(r"<[^<>\n]*>", turn)
    return [turn, turn[len(turn) // 2 :], turn[: len(turn) // 2], *(mark for mark in marks if mark)]


def check_texts(name: str, chat: Any, parser: Any, tools: tuple[ToolSpec, ...], examples: int) -> None:
    parts = pieces(name, chat, tools)
    parsers.check_total(parser, [parts[0]], examples=examples)
    texts = st.lists(st.sampled_from(parts) | st.text(max_size=4) | st.sampled_from('{}[]",\\\n<>'), max_size=10)

    @fuzz(examples)
    @given(texts.map("".join))
    def run(text: str) -> None:
        parsers.check_turn(parser, text)

    run()


def check_ids(chat: Any, parser: Any, size: int, tools: tuple[ToolSpec, ...], examples: int) -> None:
    """Control tokens in any order, parts of characters, ids without a text."""
    ids = st.lists(st.sampled_from(sorted(chat._codec.added.values())) | st.integers(0, size + 9), max_size=24)

    @fuzz(examples)
    @given(ids, st.sampled_from(["stop", "length", "abort"]), st.booleans())
    def run(turn: list[int], finish: Any, thinking: bool) -> None:
        decoded = chat.decode(turn)
        read = parser.parse_ids(turn, decoded, tools=tools, finish=finish, prompt_in_thinking=thinking)
        spans = sorted([*read.content_spans, *(item.span for item in read.items)])
        assert all(0 <= start <= end <= len(decoded.text) for start, end in spans)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        assert all(item.raw == decoded.text[slice(*item.span)] for item in read.items)
        assert read.status == ("calls" if read.items else "final")

    run()


@every
def test_any_text(name: str, format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    check_texts(name, format_of(name), parser_of(name), (look,), 30)


@every
def test_any_ids(name: str, format_of: Any, parser_of: Any, tokenizer_of: Any, look: ToolSpec) -> None:
    check_ids(format_of(name), parser_of(name), len(tokenizer_of(name)), (look,), 60)


@every
def test_no_opened_call_is_lost(name: str, format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    """Behind thinking, each mark that opens a call lies in an item, or in thinking."""
    family = FAMILIES[name]
    if not family.opens or family.rethinks:
        pytest.skip("thinking may begin anywhere, or no mark opens a call")
    chat, parser = format_of(name), parser_of(name)
    parts = pieces(name, chat, (look,))

    @fuzz(60)
    @given(st.lists(st.sampled_from(parts) | st.sampled_from(["x", "{", '"', "\n"]), max_size=8).map("".join))
    def run(text: str) -> None:
        read = parser.parse(text, tools=(look,))
        marks = [at for mark in family.opens for at in range(len(text)) if text.startswith(mark, at)]
        if read.reasoning is None and not (family.think[0] and family.think[0] in text):
            assert all(any(item.span[0] <= at < item.span[1] for item in read.items) for at in marks), read

    run()


def test_a_library_that_raises(parser_of: Any, look: ToolSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of("qwen3")

    def broken(*_: Any, **__: Any) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(parser._setup.renderer, "parse_response", broken)
    (item,) = parser.parse("some text", tools=(look,)).items
    assert isinstance(item, CallError)
    assert (item.kind, item.span, item.raw) == ("malformed", (0, 9), "some text")
    assert "<tool_call>" in item.message
    assert parser.parse_ids((), Decoded("", (0,)), tools=(look,)).items == ()


def hostile(name: str) -> list[tuple[str, str, str]]:
    """What begins, what is repeated, what ends."""
    family = FAMILIES[name]
    found = [("", mark, "") for mark in (*family.opens, *family.closes, *family.sections) if mark]
    close = (family.closes or (family.sections[1],))[0]
    if family.bare_objects:
        found += [("", piece, "") for piece in ('{"', '{"a": ', '{"name": "look", ', '{"name": "look"}; ')]
    more = {
        "parameters": [
            ("<tool_call><function=f>", "<parameter=a>", close),
            ("<tool_call>", "<function=", close),
            ("<tool_call>", "<function=f><parameter=a>", close),
        ],
        "keys": [("<tool_call>f", "<arg_key>a</arg_key>", close), ("<tool_call>f", "<arg_key>", close)],
        "invokes": [
            ("<minimax:tool_call>", '<invoke name="f">', close),
            ('<minimax:tool_call><invoke name="f">', '<parameter name="a">', "</invoke></minimax:tool_call>"),
        ],
        "dsml": [
            ('<｜DSML｜invoke name="f">\n', '<｜DSML｜parameter name="a" string="true">', close),
            ("", "word ", '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>'),
        ],
        "fence": [
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", " ", f"x{close}"),
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "\n", "x"),
        ],
        "harmony": [("", "<|start|>assistant<|message|>x", "")],
        "channels": [("<|channel>thought\n", "<|tool_call>", "<channel|>")],
    }
    return found + more.get(family.costs, [])


def check_hostile(name: str, parser: Any, tools: tuple[ToolSpec, ...], size: int) -> None:
    for begin, piece, end in hostile(name):
        ids, decoded = parser._encoder(begin + piece * (size // len(piece)) + end, ended=True)
        started = time.thread_time()
        turn = parser.parse_ids(ids, decoded, tools=tools)
        assert time.thread_time() - started < PATIENCE, (begin, piece, end)
        assert all(item.raw == decoded.text[slice(*item.span)] for item in turn.items)


@every
def test_hostile_text(name: str, parser_of: Any, look: ToolSpec) -> None:
    """Without the bounds some of these take the library hours."""
    check_hostile(name, parser_of(name), (look,), 200_000)


def test_what_is_too_much_is_one_error(parser_of: Any, look: ToolSpec) -> None:
    text = "<tool_call>" * (MAX_MARKS + 1)
    (item,) = parser_of("qwen3").parse(text, tools=(look,)).items
    assert isinstance(item, CallError)
    assert (item.kind, item.span) == ("malformed", (0, len(text)))
    assert "too much" in item.message


@pytest.mark.parametrize("name", ["qwen3.5", "laguna-xs.2", "minimax-m2", "deepseek-v3"])
def test_long_calls_are_within_the_bounds(name: str, format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    """A file of 30,000 characters in each of ten calls."""
    chat = format_of(name)
    thinks = "So." if chat.open([Message("user", "x")], (look,)).in_thinking else None
    value = "def f(x):\n    return x < 3 and y > 4\n" * 800
    calls = tuple(ToolCall("look", {"query": value.strip()}, id=f"call_{n}") for n in range(10))
    ids = chat.say(Message("assistant", "", tool_calls=calls, reasoning=thinks))
    turn = parser_of(name).parse_ids(ids, chat.decode(ids), tools=(look,), prompt_in_thinking=bool(thinks))
    assert [item.arguments for item in turn.items if isinstance(item, ToolCall)] == [{"query": value.strip()}] * 10
