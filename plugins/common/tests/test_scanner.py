"""The state machine that parsers share, with a toy format: [[NAME]] is a call, [[ without ]] is an error, and
<q>…</q> is content in which nothing counts."""

from __future__ import annotations

import re

import pytest

from toolrl.parsing import MAX_ITEMS
from toolrl.types import CallError, ToolCall
from toolrl_common.parsing import Block, TurnScanner


class Toy(TurnScanner):
    MARKS = re.compile(r"\[\[|\]\]|<q>|<think>")
    OPENERS = re.compile(r"\[\[")
    STOP = "]]"

    def read_block(self, start, tag):
        if tag == "<q>":
            end = self.text.find("</q>", start)
            return Block(None, end + len("</q>") if end >= 0 else len(self.text))
        if tag == "]]":
            return self.error("stray_close", "No call is open.", start, start + 2)
        end = self.text.find("]]", start)
        if end < 0:
            return self.error("unclosed", "Not closed.", start, len(self.text))
        return self.call(self.text[start + 2 : end], {}, start, end + 2)


class Options:
    def __init__(self, call_ends_thinking=True):
        self.call_ends_thinking = call_ends_thinking


def scan(text, *, stopped_by=None, thinking=False, **options):
    return Toy(text, Options(**options), stopped_by=stopped_by, thinking=thinking).read()


def names(turn):
    return [item.name if isinstance(item, ToolCall) else item.kind for item in turn.items]


def test_everything_is_content_reasoning_or_item():
    turn = scan("a<think>b[[x]]</think>c[[y]]d]]e[[z")
    assert names(turn) == ["y", "stray_close", "unclosed"]
    assert turn.content == "acde"
    assert turn.reasoning == "b[[x]]"
    assert [turn.items[0].span, turn.items[0].raw] == [(23, 28), "[[y]]"]
    assert turn.status == "calls"


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_may_have_begun_in_the_prompt(thinking):
    turn = scan("b[[x]]</think>c", thinking=thinking)
    assert turn.reasoning == ("b[[x]]" if thinking else None)
    assert turn.content == ("c" if thinking else "b</think>c")


def test_a_call_ends_thinking_that_never_closes():
    text = "<think>a[[x]]b"
    assert names(scan(text)) == ["x"]
    assert scan(text).reasoning == "a"
    strict = scan(text, call_ends_thinking=False)
    assert strict.items == ()
    assert strict.reasoning == "a[[x]]b"


def test_a_stop_inside_thinking_lets_generation_go_on():
    assert scan("<think>a[[x]]", stopped_by="]]").status == "continue"
    assert scan("<think>a</think>[[x]]", stopped_by="]]").status == "calls"


def test_items_have_a_limit():
    assert len(scan("[[x]]" * MAX_ITEMS).items) == MAX_ITEMS
    turn = scan("[[x]]" * MAX_ITEMS + "a[[x]]b")
    assert len(turn.items) == MAX_ITEMS + 1
    last = turn.items[-1]
    assert isinstance(last, CallError)
    assert (last.kind, last.raw) == ("too_many_calls", "[[x]]b")
    assert turn.content == "a"


def test_nothing_counts_in_a_block_that_stays_content():
    turn = scan("a <q>[[<think></q> b[[x]]c")
    assert names(turn) == ["x"]
    assert (turn.content, turn.reasoning) == ("a <q>[[<think></q> bc", None)
    assert turn.content_spans == ((0, 20), (25, 26)), "what lies side by side is one span"
    assert scan("<q>[[").content == "<q>[["
    assert names(scan("<q></q>" * (MAX_ITEMS + 10) + "[[x]]")) == ["x"], "such blocks are no items"
