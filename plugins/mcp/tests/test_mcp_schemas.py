"""Input schemas of servers: what is used to check arguments, and what isn't."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from toolrl.errors import ArgumentsError
from toolrl.tools.validation import check_arguments
from toolrl.types import ToolSpec
from toolrl_plugin_mcp.catalog import Listing, make_catalog
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.schemas import usable_schema


def check(schema: Any, **arguments: Any) -> None:
    usable = usable_schema(schema, "server: tool")
    check_arguments(ToolSpec("tool", "A tool.", usable), arguments, "tool")


@pytest.mark.parametrize("given", [None, True, [], 3, "x", {"type": "array"}, {"properties": []}, {"required": "a"}])
def test_what_is_no_object_schema_takes_anything(given: Any) -> None:
    assert usable_schema(given, "server: tool")["type"] == "object"
    check(given, a=1)


def test_a_pattern_is_told_and_not_checked() -> None:
    """On some texts some patterns take for ever, and the event loop would wait."""
    text = {"type": "string", "pattern": "(a+)+$", "description": "A word."}
    schema = {"properties": {"pattern": text, "list": {"type": "array", "items": {"pattern": "b"}}}}
    usable = usable_schema(schema, "server: tool")
    assert usable["properties"]["pattern"] == {
        "type": "string",
        "description": "A word. Matches the pattern (a+)+$",
    }
    check(schema, pattern="a" * 100 + "!", list=["c"])
    with pytest.raises(ArgumentsError):
        check(schema, pattern=1)
    keys = {"patternProperties": {"(a+)+$": {"type": "integer"}}, "additionalProperties": False}
    check(keys, **{"a" * 100 + "!": 1})


def test_data_in_a_schema_stays_as_it_is() -> None:
    data = {"pattern": "x", "type": "y"}
    schema = {"properties": {"a": {"enum": [data], "default": data}, "b": {"const": data}}}
    assert usable_schema(schema, "server: tool")["properties"] == schema["properties"]


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


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
ITSELF = {"definitions": {"a": {"allOf": [{"$ref": "#/definitions/a"}]}}, "allOf": [{"$ref": "#/definitions/a"}]}
NEXT = {"properties": {"x": {"$ref": "#"}}}


def test_schemas_that_refer_to_themselves_are_checked_once() -> None:
    check(TREE, left={"right": {"n": "any"}})
    with pytest.raises(ArgumentsError):
        check(TREE, n="one")
    check(JSON_VALUE, a=[{"b": [1]}])
    with pytest.raises(ArgumentsError):
        check(JSON_VALUE, a="one")
    assert usable_schema(TREE, "server: tool")["properties"]["left"] == {"description": "As #"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"allOf": [NEXT, NEXT]},
        {"allOf": [NEXT, {"additionalProperties": {"$ref": "#"}}]},
        {"properties": {"x": {"anyOf": [{"$ref": "#"}, {"properties": {"x": {"$ref": "#"}}}]}}},
        {"properties": {"x": {"items": {"$ref": "#"}, "contains": {"$ref": "#"}}}},
        {"properties": {"x": {"$id": "urn:x", "allOf": [{"$ref": "#/properties/x"}] * 2}}},
        {"$schema": DRAFT_4, "definitions": {"a": {}}, "properties": {"x": {"id": "http://x", **ITSELF}}},
    ],
)
def test_references_that_would_never_end_are_taken_out(schema: dict[str, Any]) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"x": [deep]}
    check(schema, x=deep, a={"anything": [1]})


def doubled(levels: int) -> dict[str, Any]:
    """Each level refers to the next twice."""
    names = [f"d{number}" for number in range(levels)]
    defs: dict[str, Any] = {names[-1]: {}}
    for name, following in itertools.pairwise(names):
        defs[name] = {"allOf": [{"$ref": f"#/$defs/{following}"}] * 2}
    return {"allOf": [{"$ref": "#/$defs/d0"}], "$defs": defs}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (doubled(60), "lead to more than 5000 schemas"),
        ({"properties": {"a": {"$ref": "https://example.com/a"}}}, "isn't in it"),
        ({"properties": {"a": {"$ref": "#anchor"}}}, "isn't in it"),
        ({"properties": {"a": {"type": 7}}}, "no JSON Schema"),
        (
            {"properties": {"x": {"default": {"pattern": "(a+)+$"}, "allOf": [{"$ref": "#/properties/x/default"}]}}},
            "is no schema",
        ),
    ],
)
def test_schemas_that_could_hold_up_the_run_arent_used(
    schema: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(schema, x={"x": {"x": 1}}, a={"anything": [1]})
    assert problem in caplog.text


def test_a_description_that_is_too_long_and_a_name_with_line_breaks(caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"name": "a\nERROR b", "description": "d" * 50_000, "inputSchema": {"properties": {"a": {"type": 7}}}}]
    options = McpOptions.model_validate({"servers": {"server": {"command": "x"}}})
    (entry,) = make_catalog({"server": Listing(tools)}, options).entries.values()
    assert len(entry.spec.description) < 20_100
    assert entry.spec.description.endswith("[30000 characters left out]")
    assert "server: a?ERROR b: its arguments aren't checked" in caplog.text
