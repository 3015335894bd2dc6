"""Input schemas of servers: what is used to check arguments, and what isn't."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.errors import ArgumentsError
from toolrl.tools.validation import check_arguments
from toolrl.types import ToolSpec
from toolrl_plugin_mcp.schemas import usable_schema


def check(schema: Any, **arguments: Any) -> None:
    usable = usable_schema(schema, "server: tool")
    check_arguments(ToolSpec("tool", "A tool.", usable), arguments, "tool")


@pytest.mark.parametrize("given", [None, True, [], 3, "x", {"type": "array"}, {"properties": []}, {"required": "a"}])
def test_what_is_no_object_schema_takes_anything(given: Any) -> None:
    assert usable_schema(given, "server: tool")["type"] == "object"
    check(given, a=1)


TREE = {
    "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}},
}
JSON_VALUE = {
    "properties": {"a": {"$ref": "#/$defs/value"}},
    "$defs": {
        "value": {
            "anyOf": [
                {"type": "integer"},
                {"type": "array", "items": {"$ref": "#/$defs/value"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
            ]
        }
    },
}


def test_schemas_that_refer_to_themselves() -> None:
    check(TREE, left={"right": {"n": 1}})
    with pytest.raises(ArgumentsError):
        check(TREE, left={"right": {"n": "one"}})
    check(JSON_VALUE, a=[{"b": [1]}])
    with pytest.raises(ArgumentsError):
        check(JSON_VALUE, a="one")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"items": {"$ref": "https://example.com/a"}}}}, "https://example.com/a"),
        ({"properties": {"a": {"$ref": "#anchor"}}}, "anchor"),
        ({"properties": {"a": {"type": 7}}}, "7"),
        ({"properties": {"a": {"items": {"pattern": "(?<javascript>a)"}}}}, "regex"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "recursion"),
        ({"allOf": [{"$ref": "#"}]}, "recursion"),
    ],
)
def test_schemas_that_can_not_be_used_check_nothing(
    schema: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(schema, x={"x": {"x": 1}}, a={"anything": [1]})
    assert problem in caplog.text
