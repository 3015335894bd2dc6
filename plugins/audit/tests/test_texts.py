"""Texts with marks of tool calls, whole and hostile."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_audit import texts

MARKS = ("<tool_call>", "</tool_call>", "<search>", "</search>", "<think>", "</think>", "<tool_response>")
CALL = '{"name": "f"}'


@given(st.lists(st.sampled_from([*MARKS, CALL, "<|im_end|>", "assistant", " "])).map("".join))
def test_calls_and_ends_are_those_that_expressions_find(text: str) -> None:
    said = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)
    found = re.findall(r"<tool_call>(.*?)</tool_call>|(<search>.*?</search>)|<tool_response>", said, re.DOTALL)
    # A name in a search's tags is taken for the tool's.
    expected = ["f" if call or CALL in search else "search" for call, search in found if search or call.strip() == CALL]
    assert texts.calls_in_text(text)[0] == expected
    ends_in_call = re.search(r"</(?:tool_call|search)>\s*(?:<\|im_end\|>|assistant)?\s*\Z", said) is not None
    assert ends_in_call == (texts.cut_off(text) == "it ends in a call without an answer") or "inside" in str(
        texts.cut_off(text)
    )


HOSTILE = ["<tool_call>", "<search>", "<think>", "<think><tool_call>", "<code><interpreter>", "```python\n",
           "</search>" + " " * 4000, '<tools>"type": "function"', '<tools>"name" : ']  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_marks_is_read_in_one_pass(piece: str) -> None:
    # With a pass for each mark this would take hours.
    text = piece * ((1 << 20) // len(piece)) + "x"
    assert texts.calls_in_text(text)[0] == []
    assert texts.cut_off(text) in (None, "it ends inside <think>", "it ends inside <search>")
    assert texts.tools_in_prompt(text) is None
