"""JSON of others is read within a bound of values, whatever its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl import bounded_json

MB = 1 << 20
VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
FRAMES = [[[0, 128, 255]] * 160] * 210 * 5
LEGITIMATE: dict[str, Any] = {
    "a long text": "a, [b], {c}: \\" * MB,
    "a table as text": '"1","2"\n' * 300_000,
    "escaped JSON": json.dumps([[]] * 300_000),
    "frames": FRAMES,
    "numbers": list(range(1_000_000)),
    "rows": [{"id": number, "name": "x"} for number in range(150_000)],
}
HOSTILE = {
    "lists": "[" + "[]," * MB + "1]",
    "objects": "[" + "{}," * MB + "1]",
    "numbers": "[" + "1," * (3 * MB) + "1]",
    "deep": "[" * MB,
    "strings and lists": "[" + '"",' * MB + "[]," * 300_000 + "1]",
    "lists behind escapes": "[" + '"\\\\",' * 400_000 + "[]," * 300_000 + "1]",
    "lists behind an open string": '["' + "x" + '", ' + "[]," * 300_000 + '"',
}


@given(VALUES)
def test_values_are_read_as_json_reads_them(value: Any) -> None:
    text = json.dumps(value)
    assert bounded_json.loads(text) == bounded_json.loads(text.encode()) == value


@pytest.mark.parametrize("name", LEGITIMATE)
def test_a_large_answer_is_read(name: str) -> None:
    value = LEGITIMATE[name]
    assert bounded_json.loads(json.dumps(value)) == value


@pytest.mark.parametrize("name", HOSTILE)
def test_many_values_in_few_bytes_are_refused_before_they_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_text: object) -> None:
        raise AssertionError("it is read")

    monkeypatch.setattr(bounded_json.json, "loads", read)
    with pytest.raises(ValueError, match="more than 200,000 lists"):
        bounded_json.loads(HOSTILE[name])


def test_a_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match="too deep"):
        bounded_json.loads("[" * 150_000)
