"""Random texts: nothing raises, nothing is lost, pieces give what the whole gives."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.parsing import MAX_ITEMS, EndFlags
from toolrl.types import ToolCall, ToolSpec
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.options import HermesOptions, Qwen3CoderOptions
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser

TOOLS = (ToolSpec("f", "", {"properties": {"a": {"type": "integer"}, "b": {"type": ["object", "null"]}}}),)
PIECES = [
    "<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>\n", "<think>", "</think>", "<answer>",
    '{"name": "f", "arguments": {', '"a": 1', "}}", "}", '{"a": "', '"', "\\", '\\"', "'", ",", ":", "[", "]", "\n",
    "<function=f>", "<function=", "\n<function=f>\n", "</function>", "\n</function>\n", "<parameter=a>", "<parameter=",
    "\n<parameter=b>\n", "</parameter>", "\n</parameter>\n", "{'a': None}", "```json\n", "```", "\\boxed{", "x", "é",
    "\ud800", "\\ud800", "NaN", "1e999", "<tool_", "call>", "</", "</answer>", " ",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=24)
STOPS = st.sampled_from([None, "</tool_call>", "</answer>"])
PARSERS = {
    "hermes": HermesParser(),
    "hermes_lenient": HermesParser(HermesOptions(repair=True, lenient_json=True, call_ends_thinking=False)),
    "qwen3_coder": Qwen3CoderParser(),
    "qwen3_coder_lenient": Qwen3CoderParser(Qwen3CoderOptions(repair=True, lenient_json=True)),
}
FLAGS = EndFlags(["answer", "boxed", r"x(.)"])


def check(parser, pieces, stopped_by, thinking):
    text = "".join(pieces)
    turn = parser.parse(text, tools=TOOLS, stopped_by=stopped_by, prefilled_thinking=thinking)
    scanner = parser.scanner(TOOLS, prefilled_thinking=thinking)
    for piece in pieces:
        scanner.feed(piece)
    assert scanner.finish(stopped_by) == turn
    check_turn(turn, text)
    flagged = FLAGS.read(turn, text, stopped_by=stopped_by)
    assert (flagged.content, flagged.reasoning) == (turn.content, turn.reasoning)
    assert [item for item in flagged.items if item in turn.items] == list(turn.items)


def check_turn(turn, text):
    """Content and items share no character; what is neither is reasoning and its tags."""
    spans = sorted([*turn.content_spans, *(item.span for item in turn.items)])
    left, at = [], 0
    for start, end in spans:
        assert at <= start < end <= len(text)
        left.append(text[at:start])
        at = end
    left.append(text[at:])
    bare = "".join(left).replace("<think>", "").replace("</think>", "")
    assert bare == (turn.reasoning or "").replace("<think>", "").replace("</think>", "")
    assert len(turn.items) <= MAX_ITEMS + 1
    for item in turn.items:
        assert item.raw == text[slice(*item.span)]
        if isinstance(item, ToolCall):
            json.dumps(item.arguments, allow_nan=False)


def fuzz(parser, examples):
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS, STOPS, st.booleans())
    def run(pieces, stopped_by, thinking):
        check(parser, pieces, stopped_by, thinking)

    run()


@pytest.mark.parametrize("name", PARSERS)
def test_random_texts(name):
    fuzz(PARSERS[name], 5_000)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TOOLRL_SLOW"), reason="takes minutes; `nox -s slow` runs it")
@pytest.mark.parametrize("name", PARSERS)
def test_many_random_texts(name):
    fuzz(PARSERS[name], 200_000)
