"""Strict JSON out of a longer text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_common.parsing.jsonvalue import MAX_DEPTH, JsonFault, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def fault(text: str, start: int = 0) -> JsonFault:
    read = read_json(text, start)
    assert isinstance(read, JsonFault), read
    return read


@given(VALUES, st.sampled_from(["", " ", "</tool_call>", " x <"]), st.booleans())
def test_reads_what_python_writes(value, after, ascii_only):
    written = json.dumps(value, ensure_ascii=ascii_only)
    assert read_json("<" + written + after, 1) == (value, len(written) + 1)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]", "1e999", '{"a": -1e999}', "9" * 5000])
def test_numbers_are_finite(text):
    assert fault(text).kind == "invalid_json"


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\udc00": 1}', '"\ud800"', '["\\ud83d", "\\ude00"]'])
def test_strings_can_be_encoded(text):
    assert "surrogate" in fault(text).reason


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_has_a_limit(opening, closing):
    for depth, deep in ((MAX_DEPTH, False), (MAX_DEPTH + 1, True), (5000, True), (200000, True)):
        read = read_json(opening * depth + "1" + closing * depth)
        assert (isinstance(read, JsonFault) and read.kind == "too_deep") == deep, depth


def test_brackets_in_strings_are_not_depth():
    assert read_json(json.dumps(["[{" * 500])) == (["[{" * 500], 1004)


def test_of_equal_keys_the_last_counts():
    assert read_json('{"a": 1, "a": 2}') == ({"a": 2}, 16)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ('{"a": }', 6, "expected a JSON value"),
        ('{"a": 1,}', 8, "comma stands before the closing"),
        ("{'a': 1}", 1, "key in double quotes"),
        ('{"a" 1}', 5, "colon"),
        ('{"a": 1 "b": 2}', 8, "comma"),
        ('{"a": "\\d"}', 7, "backslash"),
        ('{"a": "x\ny"}', 8, "raw line break"),
        ('{"a": "x', 6, "not closed"),
        ('{"a": 1', 7, "too early"),
        ('{"a": 1 </b>', 8, "too early"),
    ],
)
def test_faults_say_where_and_why(text, position, words):
    found = fault(text)
    assert words in found.reason
    # Later versions of Python point at the comma itself.
    assert found.position in ((position, position - 1) if "comma stands" in words else (position,))


def test_reading_resumes_at_the_string_that_failed():
    text = '{"a": "x</tool_call>\ny"}'
    assert fault(text).resume == text.index('"x')
    assert fault('{"a": "x</tool_call>').resume == 6
