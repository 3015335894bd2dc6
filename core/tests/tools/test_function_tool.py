"""`@tool`: what the model is told, what the function gets, what its return becomes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from toolrl.errors import ArgumentsError
from toolrl.protocols import EpisodeContext
from toolrl.tools import FunctionTool, tool
from toolrl.types import ToolResult
from toolrl_testing.fakes import make_episode_context

if TYPE_CHECKING:
    from decimal import Decimal


class Address(BaseModel):
    street: str
    number: int = Field(1, description="House number.")


class Person(BaseModel):
    name: str
    address: Address


class Node(BaseModel):
    value: int
    children: list[Node] = []


def run(made: FunctionTool, episode: EpisodeContext | None = None, /, **arguments: Any) -> ToolResult:
    return asyncio.run(made.run(arguments, episode or make_episode_context()))


@tool
def search(
    query: str,
    topk: int = 3,
    mode: Literal["exact", "fuzzy"] = "fuzzy",
    tags: list[str] | None = None,
    weights: dict[str, float] = {},  # noqa: B006 - what a plugin author may write
    limit: Annotated[int, Field(ge=1, description="At most.")] = 5,
) -> str:
    """Look things up.

    Takes its time.

    Args:
        query: What to look for,
            on two lines.
        topk: How many.
        limit: Not shown: the hint says it itself.
    """
    return f"{query}/{topk}/{mode}/{tags}/{weights}/{limit}"


def test_the_schema_says_names_types_defaults_and_descriptions() -> None:
    assert search.spec.name == "search"
    assert search.spec.description == "Look things up.\n\nTakes its time."
    assert search.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, on two lines."},
            "topk": {"type": "integer", "default": 3, "description": "How many."},
            "mode": {"type": "string", "enum": ["exact", "fuzzy"], "default": "fuzzy"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "weights": {"type": "object", "additionalProperties": {"type": "number"}, "default": {}},
            "limit": {"type": "integer", "minimum": 1, "default": 5, "description": "At most."},
        },
        "required": ["query"],
    }


def test_defaults_fill_in_and_arguments_are_coerced() -> None:
    assert run(search, query="a").text == "a/3/fuzzy/None/{}/5"
    assert run(search, query="a", topk="7", tags=["x"], limit=2).text == "a/7/fuzzy/['x']/{}/2"


@pytest.mark.parametrize(
    "docstring",
    [
        "Do it.\n\nArgs:\n    x: The x.\n    y (int): The y.",
        "Do it.\n\nParameters\n----------\nx : int\n    The x.\ny : int\n    The y.",
        "Do it.\n\n:param x: The x.\n:param int y: The y.",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_each_docstring_style_describes_parameters(docstring: str) -> None:
    def do(x: int, y: int) -> int:
        return x + y

    do.__doc__ = docstring
    spec = tool(do).spec
    assert spec.description == "Do it."
    assert spec.parameters["properties"]["x"]["description"] == "The x."
    assert spec.parameters["properties"]["y"]["description"] == "The y."


def test_options_take_precedence_over_the_function() -> None:
    @tool(name="find", description="Finds.", pure=True, timeout=3)
    def search(query: str) -> str:
        """Not shown."""
        return query

    assert (search.name, search.spec.name, search.spec.description) == ("find", "find", "Finds.")
    assert (search.traits.pure, search.traits.timeout) == (True, 3)


def test_nested_models_are_written_out_and_arrive_as_models() -> None:
    @tool
    def greet(person: Person) -> str:
        return f"{person.name} at {person.address.number}"

    schema = greet.spec.parameters["properties"]["person"]
    assert schema["properties"]["address"]["properties"]["number"]["description"] == "House number."
    assert "$ref" not in str(greet.spec.parameters)
    assert run(greet, person={"name": "Ada", "address": {"street": "s"}}).text == "Ada at 1"


def test_parameters_may_have_names_that_pydantic_keeps_for_itself() -> None:
    @tool
    def odd(schema: str, copy: int, _private: bool, model_config: str = "m") -> str:
        return f"{schema} {copy} {_private} {model_config}"

    assert list(odd.spec.parameters["properties"]) == ["schema", "copy", "_private", "model_config"]
    assert run(odd, schema="s", copy=1, _private=True).text == "s 1 True m"


def test_the_episode_is_handed_in_and_not_shown() -> None:
    @tool
    def remember(value: int, episode: EpisodeContext) -> int:
        episode.shared["seen"] = episode.shared.get("seen", 0) + value
        return int(episode.shared["seen"])

    assert list(remember.spec.parameters["properties"]) == ["value"]
    episode = make_episode_context()
    assert run(remember, episode, value=2).text == "2"
    assert run(remember, episode, value=3).text == "5"
    assert run(remember, episode, value=1, episode="the model can't set it").text == "6"


def test_mistakes_are_found_when_the_tool_is_made() -> None:
    with pytest.raises(TypeError, match=r"no_hint'.*parameter 'x' has no type hint.*`x: str`"):

        @tool
        def no_hint(x) -> str:  # type: ignore[no-untyped-def]
            return str(x)

    with pytest.raises(TypeError, match="a model names its arguments"):

        @tool
        def variable(*values: int) -> int:
            return sum(values)

    with pytest.raises(TypeError, match=r"can't be resolved.*Decimal"):

        @tool
        def unresolved(x: Decimal) -> str:
            return str(x)

    with pytest.raises(TypeError, match="no JSON Schema"):

        @tool
        def no_schema(x: threading.Thread) -> str:
            return str(x)

    with pytest.raises(ValueError, match="tool name 'two words'"):
        tool(name="two words")(len)


def test_bad_arguments_say_which_and_why() -> None:
    with pytest.raises(ArgumentsError, match=r"'search'.*topk: .*valid integer.*got 'many'"):
        run(search, query="a", topk="many")
    with pytest.raises(ArgumentsError, match=r"query: Field required"):
        run(search)


@dataclass
class Point:
    x: int
    y: int


RETURNS: list[tuple[Any, ToolResult]] = [
    ("text", ToolResult("text")),
    ({"a": [1, "ü"]}, ToolResult('{"a": [1, "ü"]}')),
    ([1, 2.5], ToolResult("[1, 2.5]")),
    (True, ToolResult("true")),
    (None, ToolResult("null")),
    (Point(1, 2), ToolResult('{"x": 1, "y": 2}')),
    (Address(street="s"), ToolResult('{"street": "s", "number": 1}')),
    (ToolResult("r", reward=1.0, done=True), ToolResult("r", reward=1.0, done=True)),
    (("t", 0.5), ToolResult("t", reward=0.5)),
    (({"a": 1}, None), ToolResult('{"a": 1}')),
    (("t", 1, {"hits": 3}), ToolResult("t", reward=1, metrics={"hits": 3})),
    ((ToolResult("t", done=True), 2.0, None), ToolResult("t", reward=2.0, done=True)),
]


@pytest.mark.parametrize(("value", "expected"), RETURNS, ids=lambda value: repr(value)[:30])
def test_what_a_function_may_return(value: Any, expected: ToolResult) -> None:
    assert run(_returning(value)) == expected


def _returning(value: Any) -> FunctionTool:
    @tool
    def give() -> Any:
        return value

    return give


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((3, 4), "a tuple has to be"),
        (("t",), "a tuple has to be"),
        (("t", 1.0, {}, 4), "a tuple has to be"),
        (("t", "much"), "str 'much' as reward, expected a number"),
        (("t", float("nan")), "nan as reward, which is no finite number"),
        (("t", 1.0, {"k": float("inf")}), "inf as metric 'k'"),
        (("t", 1.0, [1]), "as metrics, expected a dict"),
        (object(), "which JSON can't hold"),
        (ToolResult(text=3), "whose text is int 3"),  # type: ignore[arg-type]
    ],
    ids=lambda value: "an object" if type(value) is object else repr(value)[:30],
)
def test_what_a_function_may_not_return(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run(_returning(value))


def test_a_sync_function_runs_off_the_loop_unless_it_is_async() -> None:
    def where() -> str:
        return threading.current_thread().name

    async def where_async() -> str:
        return threading.current_thread().name

    here = threading.current_thread().name
    assert run(tool(where)).text == "toolrl-tool"
    assert run(tool(where_async)).text == here
