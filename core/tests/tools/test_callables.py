"""Tools of callables as people write them: what the model reads, and what the callable gets."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pydantic
import pytest
from pydantic import Field

from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext, EpisodeContext
from toolrl.python_objects import take_objects
from toolrl.tools import FunctionTool, Tool, as_toolset, tool
from toolrl.types import ToolCall, ToolResult
from toolrl_testing.fakes import make_episode_context


def run(made: FunctionTool, **arguments: Any) -> ToolResult:
    return asyncio.run(made.run(arguments, make_episode_context()))


def properties(made: FunctionTool) -> dict[str, Any]:
    schema: dict[str, Any] = dict(made.spec.parameters)
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema, allow_nan=False)
    found: dict[str, Any] = schema["properties"]
    return found


# Defaults that are a Field.


def test_a_field_as_default_is_read_as_in_a_model() -> None:
    @tool
    def search(
        query: str = Field(..., min_length=1, description="What to look for."),
        topk: int = Field(3, ge=1, le=9, description="How many."),
        tags: list[str] = Field(default_factory=lambda: ["a"], examples=[["b"]]),
        limit: Annotated[int, Field(ge=1, description="At most.")] = Field(default=5, le=7),
        page: Annotated[int, Field(default=2)] = 4,
        size: int = Field(1, alias="page size"),
        *,
        last: Annotated[int | None, Field(default=None)],
    ) -> str:
        """Look up.

        Args:
            topk: Not shown.
            tags: Read.
        """
        return f"{query} {topk} {tags} {limit} {page} {last} {size}"

    assert search.spec.parameters["required"] == ["query"]
    assert properties(search) == {
        "query": {"type": "string", "minLength": 1, "description": "What to look for."},
        "topk": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "description": "How many."},
        "tags": {"type": "array", "items": {"type": "string"}, "examples": [["b"]], "description": "Read."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 7, "default": 5, "description": "At most."},
        "page": {"type": "integer", "default": 4},
        "page size": {"type": "integer", "default": 1},
        "last": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }
    assert run(search, query="q").text == "q 3 ['a'] 5 4 None 1"
    assert run(search, query="q", topk="2", **{"page size": 3}).text == "q 2 ['a'] 5 4 None 3"


# Descriptions in hints.


class Doc:
    """As of PEP 727."""

    def __init__(self, documentation: str) -> None:
        self.documentation = documentation


def test_a_text_in_annotated_describes_the_parameter() -> None:
    @tool
    def look(
        n: Annotated[int, "How many."],
        o: Annotated[str | None, Doc("Where.")] = None,
        p: Annotated[int, 3] = 1,
        q: Annotated[int, "Or none."] | None = None,
    ) -> str:
        """Look.

        Args:
            n: Not shown.
            p: Which.
        """
        return f"{n}"

    assert [it.get("description") for it in properties(look).values()] == ["How many.", "Where.", "Which.", "Or none."]


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Tree(pydantic.BaseModel):
    weight: float = float("inf")
    children: list[Tree] = []


def test_what_is_written_out_refers_to_nothing_and_is_json() -> None:
    @tool
    def feed(
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        most: float = float("inf"),
        least: Annotated[float, Field(ge=float("-inf"), description="Least.")] = float("nan"),
        steps: list[float] = [float("inf")],  # noqa: B006 - what people write
        tree: Tree | None = None,
    ) -> str:
        return f"{type(pet).__name__} {most} {least} {steps}"

    assert "mapping" not in str(properties(feed))
    json.dumps(feed.spec.parameters, allow_nan=False)
    assert [properties(feed)[name] for name in ("most", "least")] == [
        {"type": "number", "description": "Default: inf."},
        {"type": "number", "description": "Least. Default: nan."},
    ]
    assert run(feed, pet={"kind": "dog"}).text == "Dog inf nan [inf]"


# The episode.


def test_an_optional_or_described_context_is_handed_in() -> None:
    def union(n: int, episode: EpisodeContext | None = None) -> str:
        return str(episode is not None)

    def optional(n: int, episode: Optional[EpisodeContext] = None) -> str:  # noqa: UP045
        return str(episode is not None)

    def annotated(n: int, episode: Annotated[EpisodeContext, "The episode."]) -> str:
        return str(episode is not None)

    resolved: Any = functools.wraps(union)(lambda n, episode=None: str(episode is not None))
    resolved.__annotations__ = {"n": int, "episode": Optional[EpisodeContext]}  # noqa: UP045
    for function in (union, optional, annotated, resolved):
        assert list(properties(tool(function))) == ["n"]
        assert run(tool(function), n=1).text == "True"


# functools.partial, objects and wrappers.


def fetch(query: str, api_key: str, *, limit: int = 3) -> str:
    """Fetch pages.

    Args:
        query: What to fetch.
        api_key: The secret.
        limit: How many.
    """
    return f"{query} {api_key} {limit}"


def bound_by_name() -> Callable[..., Any]:
    return functools.partial(fetch, api_key="s3cret")


def bound_by_place() -> Callable[..., Any]:
    def keyed(api_key: str, query: str, limit: int = 3) -> str:
        return fetch(query, api_key, limit=limit)

    keyed.__name__, keyed.__doc__ = "fetch", fetch.__doc__
    return functools.update_wrapper(functools.partial(keyed, "s3cret"), keyed)


def bound_twice() -> Callable[..., Any]:
    return functools.partial(functools.partial(fetch, api_key="other"), api_key="s3cret")


def bound_and_named() -> Callable[..., Any]:
    return functools.update_wrapper(functools.partial(fetch, api_key="s3cret"), fetch)


def bound_and_wrapped() -> Callable[..., Any]:
    bound = functools.partial(fetch, api_key="s3cret")

    @functools.wraps(bound)
    def fetch_again(*args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    fetch_again.__name__ = "fetch"
    return fetch_again


@pytest.mark.parametrize("make", [bound_by_name, bound_by_place, bound_twice, bound_and_named, bound_and_wrapped])
def test_what_a_partial_binds_is_neither_read_nor_set_by_the_model(make: Callable[[], Any]) -> None:
    made = tool(make())
    assert (made.name, made.spec.description) == ("fetch", "Fetch pages.")
    assert {name: it["description"] for name, it in properties(made).items()} == {
        "query": "What to fetch.",
        "limit": "How many.",
    }
    assert "s3cret" not in str(made.spec)
    assert run(made, query="q", api_key="stolen").text == "q s3cret 3"


def test_a_config_takes_a_partial_or_an_object_as_a_tool() -> None:
    given = [bound_by_name(), Weather()]
    tree, registry = take_objects({"environments": {"default": {"tools": given}}}, Registry([]))
    names = tree["environments"]["default"]["tools"]
    assert len(set(names)) == 2
    for name, shown in zip(names, ("fetch", "Weather"), strict=True):
        target = registry.get("tools", name).component.load()
        assert as_toolset(target, None, BuildContext(name)).names() == (shown,)  # type: ignore[attr-defined]


def test_a_partial_of_an_async_function_is_awaited() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    made = tool(functools.partial(add, b=2))
    assert (made.name, run(made, a=1).text) == ("add", "3")


@dataclasses.dataclass
class Weather:
    key: str = "s3cret"
    name: str = "an attribute of its own"

    def __call__(self, city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        return f"{city} {self.key}"


class Documented(Weather):
    """Forecasts."""


def test_an_object_has_the_docstring_of_its_class_or_of_its_call() -> None:
    for given, said in ((Weather(), "The weather of a city."), (Documented(), "Forecasts.")):
        made = tool(given)
        assert (made.name, made.spec.description) == (type(given).__name__, said)
        assert properties(made) == {"city": {"type": "string", "description": "Its name."}}
        assert run(made, city="Oslo").text == "Oslo s3cret"


class Retries:
    """Retries a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = "an attribute of its own"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]


def test_an_object_that_wraps_a_function_is_read_as_the_function() -> None:
    made = tool(Retries(fetch))
    assert (made.name, made.spec.description) == ("fetch", "Fetch pages.")
    assert run(made, query="q", api_key="k").text == "q k 3"


def test_an_error_about_a_partial_tells_no_secret() -> None:
    def untyped(query, api_key: str) -> str:  # type: ignore[no-untyped-def]
        return str(query)

    with pytest.raises(TypeError, match="'untyped'.*no type hint") as caught:
        tool(functools.partial(untyped, api_key="s3cret"))
    assert "s3cret" not in str(caught.value)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_a_plain_wrapper_of_an_async_function_is_awaited() -> None:
    @tool
    @plainly
    async def double(n: int) -> tuple[str, float]:
        await asyncio.sleep(0)
        return str(2 * n), 0.5

    assert run(double, n=2) == ToolResult("4", reward=0.5)


async def test_a_plain_wrapper_of_an_async_stage_is_awaited() -> None:
    class Guess(Tool):
        """Guess."""

        name = "guess"

        @plainly
        async def create(self, instance_id: str, **kwargs: Any) -> str:
            return "Guess a number."

        @plainly
        async def execute(self, instance_id: str, parameters: Cat, **kwargs: Any) -> str:
            return parameters.kind

        @plainly
        async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
            return 0.5

    episode = make_episode_context()
    async with as_toolset(Guess, None, BuildContext("guess")).open(episode.task, episode) as session:
        assert (await session.call(ToolCall("guess", {"kind": "cat"}))).text == "cat"
        assert await session.reward() == 0.5
