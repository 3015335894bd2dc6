"""What isn't marked as a tool says so when it is built."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.errors import ComponentLoadError
from toolrl.tools import as_toolset, tool
from toolrl.types import ToolResult
from toolrl_testing.fakes import make_build_context


def one(key: str) -> str:
    return key


def two(a: int, b: int) -> int:
    return a + b


def three(a: int, b: int, c: int) -> int:
    return a + b + c


def nothing() -> str:
    return "x"


def answers(options: Any, context: Any) -> ToolResult:
    return ToolResult("x")


async def asynchronous(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


class WithoutBase:
    def __init__(self, options: Any, context: Any) -> None: ...

    def execute(self, instance_id: str, parameters: Any) -> str:
        return "x"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", [one, two, three, nothing, answers, asynchronous])
def test_a_function_without_the_mark_says_so(target: Any) -> None:
    for given in (target, [target]):
        with pytest.raises(ComponentLoadError) as caught:
            as_toolset(given, None, make_build_context("add"))
        assert "tool 'add'" in caught.value.message
        assert caught.value.hint == (
            f"If {target.__name__!r} is the tool itself, put @tool above it: `from toolrl.tools import tool`."
        )


def test_a_class_without_the_base_says_what_is_expected() -> None:
    with pytest.raises(ComponentLoadError, match="got WithoutBase .*, expected a @tool function, a Tool") as caught:
        as_toolset(WithoutBase, None, make_build_context())
    assert caught.value.hint == "Derive WithoutBase from `toolrl.tools.Tool`."


def test_a_factory_of_any_form_is_still_called() -> None:
    def plain(options: Any, context: Any) -> Any:
        return tool(nothing)

    for factory in (plain, lambda *_: tool(nothing), lambda options, context, more=1: [tool(nothing)]):
        assert as_toolset(factory, None, make_build_context()).names()[0] == "nothing"
