"""vLLM's tool parsers: nothing raises, no call is lost in silence, and spans say where a call stood."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from vllm_help import PARSER_TEXTS, make_tokenizer, needs_vllm

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext
from toolrl.types import CallError, ToolCall
from toolrl_plugin_vllm import parser as parser_module
from toolrl_plugin_vllm.options import VllmParserOptions
from toolrl_plugin_vllm.packages import parsers, parsers_in
from toolrl_plugin_vllm.parser import VllmParser
from toolrl_testing.checks.parsers import SPECS, check_turn


def build(name: str, tokenizer: Any = None) -> VllmParser:
    return VllmParser(VllmParserOptions(), BuildContext(name, tokenizer=tokenizer or make_tokenizer()))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# Names.


def test_names_are_read_without_importing(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        'import nothing\n_TOOL_PARSERS_TO_REGISTER = {"b": ("x", "Y"), "a-1": (), "no name": (), 3: ()}\n'
    )
    assert parsers_in(source) == ("a-1", "b")
    source = tmp_path / "b.py"
    source.write_text('_TOOL_PARSERS_TO_REGISTER: dict[str, tuple] = {"b": ()}\nOTHER: int\n')
    assert parsers_in(source) == ("b",)


@needs_vllm
def test_the_names_are_those_that_vllm_registers() -> None:
    from vllm.tool_parsers import ToolParserManager

    assert set(parsers()) == set(ToolParserManager.list_registered())
    assert {"hermes", "kimi_k2", "qwen3_coder"} <= set(parsers())


# Building.


def test_a_parser_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        VllmParser(None, BuildContext("vllm/hermes"))


# Reading.


@needs_vllm
def test_calls_have_their_places() -> None:
    one, two = call("calculator", expression="1+1"), call("search", query="calculator")
    text = f"I look.\n{one}\n{two}"
    turn = build("vllm/hermes").parse(text, tools=SPECS)
    first, second = turn.items
    assert (turn.status, turn.content.strip()) == ("calls", "I look.")
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert (first.name, first.arguments) == ("calculator", {"expression": "1+1"})
    assert (second.name, second.arguments) == ("search", {"query": "calculator"})
    assert one in first.raw
    assert '"search"' in second.raw


@needs_vllm
def test_a_call_that_vllm_passes_over_is_an_error() -> None:
    made = build("hermes")
    text = 'So: <tool_call>{"name": "calculator", "arguments": {</tool_call>'
    turn = made.parse(text, tools=SPECS)
    (error,) = turn.items
    assert isinstance(error, CallError)
    assert (error.kind, error.raw) == ("malformed", text)
    assert "'hermes'" in error.message
    (cut,) = made.parse('<tool_call>{"name": "calc', tools=SPECS, finish="length").items
    assert cut.kind == "unclosed"


@needs_vllm
def test_arguments_that_are_no_object_are_an_error() -> None:
    turn = build("hermes").parse('<tool_call>{"name": "search", "arguments": [1]}</tool_call>', tools=SPECS)
    (error,) = turn.items
    assert (error.kind, error.name) == ("bad_arguments", "search")


@needs_vllm
def test_thinking_is_kept_from_vllm() -> None:
    made, wanted = build("hermes"), call("search", query="x")
    draft = call("calculator", expression="1")
    turn = made.parse(f"<think>{draft}</think>{wanted}", tools=SPECS)
    assert [item.name for item in turn.items] == ["search"]
    assert turn.reasoning == draft
    assert turn.items[0].raw == wanted
    assert made.parse(f"{draft}</think>{wanted}", tools=SPECS, prefilled_thinking=True) == made.parse(
        f"{draft}</think>{wanted}", tools=SPECS
    )
    assert made.parse(draft, tools=SPECS, prefilled_thinking=True).items == ()


@needs_vllm
def test_a_turn_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module, "LONGEST", 100)
    made = build("hermes")
    assert isinstance(made.parse(call("search", query="x"), tools=SPECS).items[0], ToolCall)
    (error,) = made.parse(call("search", query="x" * 100), tools=SPECS).items
    assert error.kind == "malformed"


@needs_vllm
def test_every_parser_is_total() -> None:
    tokenizer, tried = make_tokenizer(), 0
    chance = random.Random(0)
    pieces = [text for texts in PARSER_TEXTS.values() for text in texts]
    pieces += ["<think>", "</think>", "[", "{", '"', "\ud800", "<|im_end|>", "calculator(", '{"name": 3}', "\x00", "</"]
    texts = ["", " "] + ["".join(chance.choices(pieces, k=3))[: chance.randint(1, 200)] for _ in range(12)]
    for name in parsers():
        try:
            made = build(name, tokenizer)
        except ConfigError:
            continue
        tried += 1
        for text in texts:
            check_turn(made, text)
    assert tried > 30
