"""Arguments that are JSON5, which RLFactory's managers read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.types import CallError, ToolCall
from toolrl_plugin_rlfactory.reading import read


def item(value: str) -> ToolCall | CallError:
    return read(f"<tool_call>{{name: 'f', arguments: {{v: {value}\n}}}}</tool_call>").items[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, $b_2: 'x', \"c\": null,}", {"a": 1, "$b_2": "x", "c": None}),
        ("[1, 2, ]", [1, 2]),
        ("/* one */ {a: /* two * / */ 1} // three", {"a": 1}),
        ("[.5, 5., +3, -0x1F, 1e2, -.5e-1]", [0.5, 5.0, 3, -31, 100.0, -0.05]),
        ("'it\\'s\\x41B\\\n!'", "it'sAB!"),
        ('"\\ud83d\\ude42"', "🙂"),
        ("{größe: true}", {"größe": True}),
    ],
)
def test_what_json_does_not_have(text: str, value: Any) -> None:
    call = item(text)
    assert isinstance(call, ToolCall)
    assert call.arguments == {"v": value}


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
