"""Random texts under random options: nothing raises, nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.parsing import MAX_ITEMS, EndFlags
from toolrl.types import CallError, ToolCall, ToolSpec
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
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "<think>\nhm\n</think>\n",
    '\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n', "{'name': 'f', 'arguments': ",
    '\n{"name": "f", "arguments": {"a": 1}}\n', ",}", "\x00", "\\u12", "True", "-",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=24)
STOPS = st.sampled_from([None, "</tool_call>", "</answer>"])
PARSERS = {"hermes": (HermesParser, HermesOptions), "qwen3_coder": (Qwen3CoderParser, Qwen3CoderOptions)}
OPTIONS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("repair", "lenient_json", "call_ends_thinking", "stop_after_call")}
)
FLAGS = EndFlags(["answer", "boxed", r"x(.)"])
KINDS = {
    "unclosed", "empty", "invalid_json", "extra_data", "not_object", "missing_name", "bad_name", "missing_arguments",
    "bad_arguments", "malformed", "stray_close", "too_deep", "too_many_calls",
}  # fmt: skip


def check(parser, text, stopped_by, thinking, tools):
    turn = parser.parse(text, tools=tools, stopped_by=stopped_by, prefilled_thinking=thinking)
    assert parser.parse(text, tools=tools, stopped_by=stopped_by, prefilled_thinking=thinking) == turn
    check_turn(turn, text)
    flagged = FLAGS.read(turn, text, stopped_by=stopped_by)
    assert (flagged.content, flagged.reasoning) == (turn.content, turn.reasoning)
    assert [item for item in flagged.items if item in turn.items] == list(turn.items)
    assert [item.span for item in flagged.items] == sorted(item.span for item in flagged.items)


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
    assert turn.content == "".join(text[slice(*span)] for span in turn.content_spans)
    assert turn.status in (("calls", "continue") if turn.items else ("final", "continue"))
    for item in turn.items:
        assert item.raw == text[slice(*item.span)]
        if isinstance(item, ToolCall):
            assert item.name.strip()
            json.dumps(item.arguments, allow_nan=False, ensure_ascii=False).encode()
        else:
            assert isinstance(item, CallError)
            assert item.kind in KINDS
            assert item.message


def fuzz(name, examples):
    make, options_of = PARSERS[name]

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(OPTIONS, TEXTS, STOPS, st.booleans(), st.sampled_from([TOOLS, ()]))
    def run(options, pieces, stopped_by, thinking, tools):
        check(make(options_of(**options)), "".join(pieces), stopped_by, thinking, tools)

    run()


@pytest.mark.parametrize("name", PARSERS)
def test_random_texts(name):
    fuzz(name, 5_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_many_random_texts(name):
    fuzz(name, 200_000)
