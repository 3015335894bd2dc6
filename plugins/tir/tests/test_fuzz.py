"""Random and hostile texts: nothing raises, nothing is lost, time is linear."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.parsing import MAX_ITEMS, EndFlags
from toolrl.types import CallRecord, ToolCall, ToolResult
from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.parser import TirParser

PIECES = [
    "```", "```python\n", "\n```python\n", "\n```\n", "```\n", "`", "~~~", "~~~py\n", "\n~~~\n", "````", "\n````\n",
    "py", "python", "python3", "pythonic", "output", "```output\n", "json", " {.a}", "{", "}", "\n", "\n\n", " ", "  ",
    "\t", "    ", "<python>", "</python>", "<PYTHON>", "<calculator>", "</calculator>", "<think>", "</think>",
    "<answer>", "</answer>", "'", '"', "\\", "#", "\\'", "'''", "x", "1+1", "print(1)", "é", "🙂", "\ud800", "\r", "<",
    "</", "- ", "1. ", "> ", "\n```python\nprint(1)\n```\n", "<calculator>1+1</calculator>", "a ```b``` c", "```x```",
    "<python>\nprint('</python>')\n</python>", "```python x```",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=24)
STOPS = st.sampled_from([None, "```", "````", "~~~", "</python>", "</calculator>", "</think>", "</answer>"])
PARSERS = {"default": TirParser(), "strict": TirParser(TirParserOptions(call_ends_thinking=False))}
FLAGS = EndFlags(["answer", "boxed", r"x(.)"])


def check(parser, pieces, stopped_by, thinking):
    text = "".join(pieces)
    turn = parser.parse(text, tools=(), stopped_by=stopped_by, prefilled_thinking=thinking)
    check_turn(turn, text)
    flagged = FLAGS.read(turn, text, stopped_by=stopped_by)
    assert (flagged.content, flagged.reasoning) == (turn.content, turn.reasoning)
    assert [item for item in flagged.items if item in turn.items] == list(turn.items)
    assert turn.status in ("calls" if turn.items else "final", "continue" if stopped_by else "")
    assert all(parser.stops(text))
    results = [CallRecord(item, ToolResult(text)) for item in turn.items[:1]]
    assert not results or text in parser.render_results(results)


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
            assert all(value.strip() for value in item.arguments.values())
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
@pytest.mark.parametrize("name", PARSERS)
def test_many_random_texts(name):
    fuzz(PARSERS[name], 200_000)


UNITS = [
    "`", "~", "``` ", "```\n", "  ~~~\n", "```a```", "x ```\n", "x```a b\n", "```python\n", "```python\nx\n```\n",
    "```py", "```python x\n", "````\n```\n", "```json\n```python\n", "```a\n", "    ```\n", "- ```\n", "<python>",
    "<python>\n", "</python>", "<calculator>", "<calculator>1</calculator>", "<think>", "<think></think>", "'", "'\n",
    "'\"\n", '""', "\\'", "# \n", "#<", "\n", " \n", " ", "<", "</pyth", "``` {", "x" * 1990 + "<python>",
    '"<python>\\"" <calculator>1</calculator>', '"<python>" <calculator>1</calculator>\n',
]  # fmt: skip
BEGINNINGS = ["", "```python\n", "<python>", "<python>\n", "<calculator>", "<think>"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_of_anything_takes_linear_time(unit):
    """The limit that parsers keep is half a second on an idle machine; here other work may be going on."""
    parser = PARSERS["default"]
    texts = [beginning + unit * (1_000_000 // len(unit)) for beginning in BEGINNINGS]
    texts += [text + '"</python>"' for text in texts[2:4]]
    assert all(_seconds(lambda t=text: parser.parse(t, tools=())) < 2.0 for text in texts)
    assert _seconds(lambda: parser.stops(texts[0])) < 2.0


def _seconds(work):
    """Processor time of this thread."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
