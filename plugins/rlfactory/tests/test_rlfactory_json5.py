"""Arguments that are JSON5, which RLFactory's managers read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.types import CallError, ToolCall
from toolrl_plugin_rlfactory.reading import read


def item(value: str) -> ToolCall | CallError:
    return read(f"<tool_call>{{name: 'f', arguments: {{v: {value}\n}}}}</tool_call>").items[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{a}", "{a: 1", "[1,,2]", "{,}", "01", "1 2", "Infinity", "-NaN", "1e999", "'a\nb'", '"\\ud83d"', "/* 1",
     "[" * 100 + "'a'" + "]" * 100, "{1: 2}", "9" * 5000, "True", "1abc"],
)  # fmt: skip
def test_what_can_not_be_read_is_answered(text: str) -> None:
    assert isinstance(item(text), CallError)


@settings(max_examples=200)
@given(st.text(st.sampled_from("{}[]:,'\"\\/*0x1.e+-aN \n\ud800"), max_size=30))
def test_any_text_is_a_call_or_an_error(text: str) -> None:
    assert isinstance(item(text), ToolCall | CallError)
