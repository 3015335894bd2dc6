"""Mending JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl_plugin_qwen.mend import mend_json

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc'\" \n"), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("[1, 2, ]", [1, 2]),
        ("{'a': 'b'}", {"a": "b"}),
        ("{'a': 'it\\'s \"x\"'}", {"a": 'it\'s "x"'}),
        ('{"a": "x\ny\t"}', {"a": "x\ny\t"}),
        ("{'a': [True, False, None]}", {"a": [True, False, None]}),
        ("{'a': 'x\\ny'}", {"a": "x\ny"}),
        ('{"a": "True, \'b\',}"}', {"a": "True, 'b',}"}),
        ('{"a": "\\d"}', None),
        ("{a: 1}", None),
        ("[,]", None),
        ("[1,,]", None),
        ('{"a": 1]', None),
        ('{"a": NaN,}', None),
        ("[1 2]", None),
        ('["a\\\nb"]', None),
        ("['a\\\nb']", None),
        ("['\x00\x1f']", ["\x00\x1f"]),
        ("<", None),
        ("[" * 200 + "]" * 200, None),
    ],
)
def test_mends_these_and_no_others(text, value):
    mended = mend_json(text + "</tool_call>")
    assert mended == (None if value is None else (value, len(text)))


@given(LITERALS)
@settings(max_examples=200)
def test_json_and_python_literals_are_read(value):
    if "\\x" not in repr(value) and "\\U" not in repr(value):
        assert mend_json(repr(value)) in ((value, len(repr(value))), None if "\\" in repr(value) else ())
    assert mend_json(json.dumps(value)) == (value, len(json.dumps(value)))
