"""Names and schemas of tools."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import ArgumentsError, ConfigError
from toolrl.tools.validation import check_arguments
from toolrl.types import ToolSpec
from toolrl_plugin_mcp.catalog import full_name, make_catalog
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.schemas import usable_schema
from toolrl_testing.checks.tools import check_spec

OPTIONS = McpOptions.model_validate({"servers": {"a": {"command": "x"}}})


def choice(**options: Any) -> McpOptions:
    return OPTIONS.model_copy(update=options)


def listing(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


@given(st.text(), st.text())
def test_every_name_can_be_carried(server: str, tool: str) -> None:
    catalog = make_catalog({server: listing(tool)}, choice())
    (spec,) = catalog.specs()
    check_spec(spec)
    assert spec.name == full_name(server, tool)
    assert catalog.resolve(spec.name) == spec.name
    assert catalog.resolve(tool) == spec.name
    assert catalog.resolve(f"{server}-{tool}") == spec.name


def test_short_names_are_looked_up() -> None:
    catalog = make_catalog({"a": listing("x", "y"), "b": listing("x", "z.1")}, choice())
    assert catalog.resolve("y") == "a-y"
    assert catalog.resolve("z.1") == catalog.resolve("z_1") == catalog.resolve("b-z.1") == "b-z_1"
    assert catalog.resolve("x") is None  # two servers have it
    assert catalog.resolve("nothing") is None
    assert catalog.resolve("a-x") == "a-x"


def test_short_names_for_the_model() -> None:
    catalog = make_catalog({"a": listing("x"), "b": listing("y")}, choice(names="short"))
    assert list(catalog.entries) == ["x", "y"]
    assert catalog.resolve("a-x") == "x"
    with pytest.raises(ConfigError, match="two tools get the name 'x'.*\n.*names: full") as caught:
        make_catalog({"a": listing("x"), "b": listing("x")}, choice(names="short"), "environments.default.tools[0]")
    assert caught.value.where == "environments.default.tools[0]"


def test_names_that_clash_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r'exclude: \["a.b"\]'):
        make_catalog({"s": listing("a/b", "a.b")}, choice())
    with pytest.raises(ConfigError, match="'y-z' of 'x' and 'z' of 'x-y'.*\n.*rename a server"):
        make_catalog({"x": listing("y-z"), "x-y": listing("z")}, choice())
    catalog = make_catalog({"s": listing("a/b", "a.b")}, choice(exclude=["a.b"]))
    assert list(catalog.entries) == ["s-a_b"]


def test_include_and_exclude() -> None:
    servers = {"a": listing("read", "write"), "b": listing("read", "run")}
    assert list(make_catalog(servers, choice(include=["read"])).entries) == ["a-read", "b-read"]
    assert list(make_catalog(servers, choice(include=["a-*", "run"])).entries) == ["a-read", "a-write", "b-run"]
    assert list(make_catalog(servers, choice(exclude=["b-*", "write"])).entries) == ["a-read"]
    assert list(make_catalog(servers, choice(include=["r*"], exclude=["b-r??d"])).entries) == ["a-read", "b-run"]
    with pytest.raises(ConfigError, match="no tool fits the pattern 'wriet'; there is a-read, a-write, b-read, b-run"):
        make_catalog(servers, choice(exclude=["wriet"]))


def test_pure_and_idempotent_tools() -> None:
    hints: list[Any] = [None, {}, {"readOnlyHint": True}, {"idempotentHint": True}, {"readOnlyHint": "yes"}, "x"]
    tools = [{"name": f"t{number}", "annotations": hint} for number, hint in enumerate(hints)]
    catalog = make_catalog({"s": tools}, choice(pure=["t0", "s-t1"]))
    assert [entry.pure for entry in catalog.entries.values()] == [True, True, False, False, False, False]
    assert [entry.idempotent for entry in catalog.entries.values()] == [False, False, True, True, False, False]
    with pytest.raises(ConfigError, match="no tool fits the pattern 'none'"):
        make_catalog({"s": tools}, choice(pure=["none"]))


def test_more_tools_than_a_prompt_can_hold_are_refused_before_their_schemas_are_checked() -> None:
    many = {"s": listing(*(f"t{number}" for number in range(20_000)))}
    with pytest.raises(ConfigError, match="20000 tools, more than the 500") as caught:
        make_catalog(many, choice())
    assert "include" in str(caught.value.hint)
    assert len(make_catalog(many, choice(include=["t1999?"])).entries) == 10


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["object", "string", "#", "#/properties/a", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "$ref", "items", "enum", "anyOf", "a", "$defs"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "anyOf", "$defs", "$schema"]), _JSON), _JSON)
def test_whatever_a_server_sends_gives_a_schema_that_works(given_schema: dict[str, Any], value: Any) -> None:
    catalog = make_catalog({"s": [{"name": "t", "inputSchema": given_schema}]}, choice())
    (spec,) = catalog.specs()
    check_spec(spec)
    with contextlib.suppress(ArgumentsError):
        asyncio.run(check_arguments(spec, {"a": value}, spec.name))


def check(schema: Any, **arguments: Any) -> None:
    usable = usable_schema(schema, "server: tool")
    asyncio.run(check_arguments(ToolSpec("tool", "A tool.", usable), arguments, "tool"))


@pytest.mark.parametrize("given", [None, True, [], 3, "x", {"type": "array"}, {"properties": []}, {"required": "a"}])
def test_what_is_no_object_schema_takes_anything(given: Any) -> None:
    assert usable_schema(given, "server: tool")["type"] == "object"
    check(given, a=1)


def test_a_pattern_is_told_and_not_checked() -> None:
    """Those of JavaScript may be none of Python's, and Python's may take for ever."""
    text = {"type": "string", "pattern": "(a+)+$", "description": "A word."}
    schema = {"properties": {"pattern": text, "list": {"type": "array", "items": {"pattern": "(?<word>b)"}}}}
    shown = usable_schema(schema, "server: tool")["properties"]["pattern"]
    assert shown == {"type": "string", "description": "A word. Matches the pattern (a+)+$"}
    check(schema, pattern="a" * 100 + "!", list=["c"])
    with pytest.raises(ArgumentsError):
        check(schema, pattern=1)
    keys = {"patternProperties": {"(a+)+$": {"type": "integer"}}, "additionalProperties": False}
    check(keys, **{"a" * 100 + "!": 1})


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
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "recursion"),
        ({"allOf": [{"$ref": "#"}]}, "recursion"),
    ],
)
def test_schemas_that_can_not_be_used_check_nothing(
    schema: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(schema, x={"x": {"x": 1}}, a={"anything": [1]})
    assert problem in caplog.text
