"""Each contract of tools fails on a tool that breaks it, and holds for one that doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from toolrl.protocols import Toolset
from toolrl.tools import Tool, ToolError, as_toolset
from toolrl.types import ToolSpec
from toolrl_testing.checks import tools
from toolrl_testing.fakes import RecordingToolset, make_build_context

PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CALLS = {"count": [{"n": 1}, {"n": 2}]}
Check = Callable[..., Coroutine[Any, Any, None]]


def build(target: Any) -> Callable[[], Toolset]:
    return lambda: as_toolset(target, None, make_build_context())


class Sound(Tool):
    """Keeps a sum for each episode and drops it."""

    spec = ToolSpec("count", "Adds up.", PARAMETERS)

    def __init__(self, options: Any = None, context: Any = None) -> None:
        super().__init__(options, context)
        self.sums: dict[str, int] = {}

    async def create(self, instance_id: str) -> None:
        self.sums[instance_id] = 0

    async def execute(self, instance_id: str, parameters: Any) -> Any:
        await asyncio.sleep(0)
        self.sums[instance_id] += parameters["n"]
        return self.sums[instance_id]

    async def release(self, instance_id: str) -> None:
        self.sums.pop(instance_id, None)


ALL: list[Check] = [tools.check_calls, tools.check_odd_arguments, tools.check_isolation, tools.check_release]


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__)
def test_a_sound_tool_keeps_every_contract(check: Check) -> None:
    asyncio.run(check(build(Sound), CALLS))
    asyncio.run(tools.check_specs(build(Sound)))


class SharesState(Sound):
    async def execute(self, instance_id: str, parameters: Any) -> Any:
        await asyncio.sleep(0)
        self.sums["all"] = self.sums.get("all", 0) + parameters["n"]
        return self.sums["all"]


class LeavesATask(Sound):
    async def execute(self, instance_id: str, parameters: Any) -> Any:
        self.background = asyncio.ensure_future(asyncio.sleep(60))
        return "started"


class FailsOnEmptyText(Tool):
    spec = ToolSpec("count", "Says the first letter.", {"type": "object", "properties": {"n": {"type": "string"}}})

    async def execute(self, instance_id: str, parameters: Any) -> Any:
        return parameters.get("n", "x")[0]


class AlwaysRefuses(Sound):
    async def execute(self, instance_id: str, parameters: Any) -> Any:
        raise ToolError("No.")


class Crashes(Sound):
    async def execute(self, instance_id: str, parameters: Any) -> Any:
        raise ZeroDivisionError("on purpose")


BROKEN: list[tuple[type[Tool], Check, str]] = [
    (AlwaysRefuses, tools.check_calls, r"should succeed, and answered 'No.' \(tool_error\)"),
    (Crashes, tools.check_calls, r"(?s)\(crash\).*ZeroDivisionError: on purpose"),
    (FailsOnEmptyText, tools.check_odd_arguments, r"(?s)count\(\{'n': ''\}\) ended in a crash.*Raise ToolError"),
    (SharesState, tools.check_isolation, "state is shared between episodes"),
    (LeavesATask, tools.check_release, "asyncio tasks are left after their episodes ended"),
]


@pytest.mark.parametrize(("broken", "check", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_tool_is_found(broken: type[Tool], check: Check, message: str) -> None:
    calls = {"count": [{"n": "a"}]} if broken is FailsOnEmptyText else CALLS
    with pytest.raises(AssertionError, match=message):
        asyncio.run(check(build(broken), calls))


def test_a_tool_without_an_example_call() -> None:
    with pytest.raises(AssertionError, match="no example call for count"):
        asyncio.run(tools.check_calls(build(Sound), {}))


def test_answers_that_differ_by_chance_can_be_let_pass() -> None:
    asyncio.run(tools.check_isolation(build(SharesState), CALLS, same_answers=False))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ToolSpec("two words", "d"), "tool name 'two words'"),
        (ToolSpec("f", "d", {"type": "object", "properties": {"a": {"type": "text"}}}), "no JSON Schema"),
        (ToolSpec("f", "d", {"type": "object", "properties": {}, "required": ["a"]}), "requires 'a'"),
        (ToolSpec("f", "d", {"type": "object", "default": object()}), "isn't JSON"),
    ],
)
def test_a_broken_spec_is_found(spec: ToolSpec, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        asyncio.run(tools.check_specs(lambda: RecordingToolset(tools=[spec])))


class LeavesATaskAfterStop(RecordingToolset):
    async def start(self) -> None:
        self.background = asyncio.ensure_future(asyncio.sleep(60))


def test_a_toolset_that_leaves_a_task_after_stop() -> None:
    with pytest.raises(AssertionError, match=r"left after stop\(\)"):
        asyncio.run(tools.check_release(LeavesATaskAfterStop, {"echo": [{}]}))
