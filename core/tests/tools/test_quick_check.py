"""The glance at arguments is true of nothing that the validator refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.tools.validation import Validators, compile_schema, quick_check
from toolrl.types import ToolSpec

TYPES = ["string", "integer", "number", "boolean", "array", "object", "null"]
schemas = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(
            st.sampled_from("abc"), st.sampled_from(TYPES).map(lambda kind: {"type": kind, "title": "T"})
        ),
    },
    optional={
        "required": st.lists(st.sampled_from("abc"), unique=True),
        "additionalProperties": st.booleans(),
        "description": st.text(),
    },
)
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([1]) | st.just({"x": 1})


@given(schema=schemas, arguments=st.dictionaries(st.sampled_from("abcd"), values))
def test_what_passes_is_valid(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    check = quick_check(schema)
    assert check is not None
    if check(arguments):
        assert compile_schema(schema).is_valid(arguments)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        {"type": "object", "minProperties": 1},
        {"$schema": "http://json-schema.org/draft-03/schema#", "type": "object"},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}},
        {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ],
)
def test_other_schemas_are_left_to_the_validator(schema: dict[str, Any]) -> None:
    assert quick_check(schema) is None


def test_plain_arguments_pass_and_others_do_not() -> None:
    spec = ToolSpec("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    validators = Validators()
    assert validators.plainly_valid(spec, {"a": 1, "other": 2})
    assert not validators.plainly_valid(spec, {"a": True})
    assert not validators.plainly_valid(spec, {})
