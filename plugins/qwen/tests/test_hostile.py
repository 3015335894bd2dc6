"""Random and hostile texts under every option: nothing raises, nothing is lost, time is linear."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.parsing import EndFlags
from toolrl.types import ToolCall
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.options import QwenOptions
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser
from toolrl_testing.checks.parsers import SPECS, check_linear, check_total

HERMES = '<tool_call>{"name": "search", "arguments": {"query": '
CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
BARE = '{"name": "search", "arguments": {"query": '
OPENED = "<tool_call>\n<function=search>\n<parameter=query>\n"
CODER = f"{OPENED}1\n</parameter>\n</function>\n</tool_call>\n"
PIECES = [
    CALL, f"{HERMES}'x',}}}}</tool_call>", f"{BARE}1}}}}\n", f"```json\n{BARE}1}}}}\n```\n", CODER, f"{OPENED}{CODER}",
    "<think>\nhm\n</think>\n", "\\ud800", "\\u12", "NaN", "True", ",}", "'", '\\"', "<tool_", "</", "\n</parameter>\n",
    "\n<parameter=query>\n", "\n<function=search>\n", "\n</function>\n", "<parameter=", "<function=", "\x00",
]  # fmt: skip
UNITS = [
    "<think><tool_call>", "</think><think>", "</answer><answer>x", "\\boxed{", HERMES, f'{HERMES}"', f"{HERMES}[", BARE,
    f'{BARE}"\n', "<tool_call>{'a': '", "<tool_call>{'a':[" + "1," * 500, "<tool_call>{'a':[" + "'\"\"\"\"'," * 100,
    "<tool_call>{'a': [" + "'\x00\x00\x00\x00'," * 100, '9<tool_call>{"a": "\n' + "\x00" * 1000,
    "<tool_call>" + "[" * 1000, HERMES + '{"a":' * 100 + "1" + "}" * 100, HERMES + '"' + "\\ud83d\\ude00" * 100,
    OPENED, CODER, f"{OPENED}{CODER}x", OPENED + "\n<function=f>\n<parameter=a>\n" * 30 + "</function>" * 15,
    OPENED + "\n<function=f>\n" + "\n<parameter=a>\n" * 30, f"{OPENED}</parameter>" + " " * 10_000,
    f"{OPENED}{{'x': None,}}\n</parameter>\n", "<function=f></function><think></thin", f"{BARE}<think></think>1",
]  # fmt: skip
"""Patterns that reading might look at again and again."""
ALL = {"repair": True, "lenient_json": True}
PARSERS = {
    "hermes": HermesParser(),
    "hermes lenient": HermesParser(QwenOptions(**ALL, stop_after_call=True)),
    "hermes strict thinking": HermesParser(QwenOptions(**ALL, call_ends_thinking=False)),
    "qwen3_coder": Qwen3CoderParser(),
    "qwen3_coder lenient": Qwen3CoderParser(QwenOptions(**ALL, stop_after_call=True)),
}
FLAGS = EndFlags(["answer", "boxed", r"x(.)"])


@pytest.mark.parametrize("name", PARSERS)
def test_random_texts(name):
    check_total(PARSERS[name], PIECES, examples=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_many_random_texts(name):
    check_total(PARSERS[name], PIECES, examples=100_000)


@pytest.mark.parametrize("name", PARSERS)
def test_hostile_texts_take_linear_time(name):
    check_linear(PARSERS[name], UNITS)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*PIECES, "<answer>", "</answer>", "\\boxed{", "}", "x"]), max_size=16))
def test_arguments_can_be_stored_and_end_flags_lose_nothing(name, pieces):
    text = "".join(pieces)
    turn = PARSERS[name].parse(text, tools=SPECS)
    for item in turn.items:
        if isinstance(item, ToolCall):
            json.dumps(item.arguments, allow_nan=False, ensure_ascii=False).encode()
    flagged = FLAGS.read(turn, text)
    assert (flagged.content, flagged.reasoning) == (turn.content, turn.reasoning)
    assert [item for item in flagged.items if item in turn.items] == list(turn.items)
