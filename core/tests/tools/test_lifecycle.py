"""`Tool`: four stages in order, one instance an episode, released on every path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, Field

from toolrl.errors import ComponentLoadError, ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools import Tool, ToolError, as_toolset
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task

SPEC = ToolSpec("counter", "Counts.", {"type": "object", "properties": {"by": {"type": "integer"}}})


class Counter(Tool):
    spec = SPEC

    def __init__(self, options: Any = None, context: Any = None) -> None:
        super().__init__(options, context)
        self.values: dict[str, int] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []

    async def create(self, instance_id: str, start: int = 0, **kwargs: Any) -> str | None:
        self.log.append(("create", instance_id, {"start": start, **kwargs}))
        self.values[instance_id] = start
        return f"The counter stands at {start}." if start else None

    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        self.log.append(("execute", instance_id, kwargs))
        await asyncio.sleep(0)
        self.values[instance_id] += parameters.get("by", 1)
        return str(self.values[instance_id]), 0.25

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.log.append(("calc_reward", instance_id, kwargs))
        return float(self.values[instance_id])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.log.append(("release", instance_id, kwargs))
        self.values.pop(instance_id, None)

    def stages(self) -> list[str]:
        return [stage for stage, _, _ in self.log]


def box_of(*tools: Tool) -> ToolBox:
    return ToolBox([ToolEntry(f"t{n}", as_toolset(made, None, make_build_context())) for n, made in enumerate(tools)])


def call(**arguments: Any) -> ToolCall:
    return ToolCall("counter", arguments)


async def test_the_stages_run_in_order_and_state_lasts_over_turns() -> None:
    tool = Counter()
    async with box_of(tool).open(make_task(), make_episode_context()) as session:
        first = await session.answer([call(by=2)])
        second = await session.answer([call(by=3)])
        assert [record.result.text for record in (*first, *second)] == ["2", "5"]
        assert first[0].result.reward == 0.25
        (entry,) = await session.rewards()
        assert (entry.source, entry.value, entry.turn) == ("tool:counter", 5.0, None)
    assert tool.stages() == ["create", "execute", "execute", "calc_reward", "release"]
    assert len({instance for _, instance, _ in tool.log}) == 1
    assert tool.values == {}


async def test_each_stage_gets_its_kwargs_from_the_task_over_those_of_the_options() -> None:
    tool = Counter({"create_kwargs": {"start": 10, "kept": True}, "release_kwargs": {"why": "options"}})
    task = make_task(
        tools_kwargs={
            "counter": {
                "create_kwargs": {"start": 1},
                "execute_kwargs": {"unit": "m"},
                "calc_reward_kwargs": {"ground_truth": 3},
                "release_kwargs": None,
            },
            "another": {"create_kwargs": {"start": 99}},
        }
    )
    async with box_of(tool).open(task, make_episode_context(task)) as session:
        assert await session.opening() == [Message("user", "The counter stands at 1.")]
        await session.answer([call()])
        await session.rewards()
    assert [kwargs for _, _, kwargs in tool.log] == [
        {"start": 1, "kept": True},
        {"unit": "m"},
        {"ground_truth": 3},
        {"why": "options"},
    ]


async def test_episodes_at_once_do_not_share_state() -> None:
    tool = Counter()
    box = box_of(tool)

    async def episode(number: int) -> str:
        task = make_task(tools_kwargs={"counter": None})
        async with box.open(task, make_episode_context(task, episode_id=str(number))) as session:
            for _ in range(5):
                (record,) = await session.answer([call(by=number)])
                await asyncio.sleep(0)
            return record.result.text

    texts = await asyncio.gather(*map(episode, range(20)))
    assert texts == [str(5 * number) for number in range(20)]
    assert tool.stages().count("create") == tool.stages().count("release") == 20


class FailsToCreate(Counter):
    spec = ToolSpec("broken", "")

    async def create(self, instance_id: str, start: int = 0, **kwargs: Any) -> str | None:
        self.log.append(("create", instance_id, {}))
        raise OSError("no sandbox left")


async def test_what_was_created_is_released_where_another_tool_fails_to_open() -> None:
    good, bad = Counter(), FailsToCreate()
    with pytest.raises(ToolsetError, match="t1: opening a session failed: OSError: no sandbox left") as caught:
        async with box_of(good, bad).open(make_task(), make_episode_context()):
            pytest.fail("must not open")
    assert (caught.value.fault, caught.value.where) == ("tool", "t1")
    assert good.stages() == ["create", "calc_reward", "release"]
    assert bad.stages() == ["create", "release"]  # There is no instance to reward.


@pytest.mark.parametrize("value", [float("nan"), "high"])
async def test_a_reward_that_is_no_finite_number_is_the_tools_fault(value: Any) -> None:
    class BadReward(Counter):
        async def calc_reward(self, instance_id: str, **kwargs: Any) -> Any:
            return value

    with pytest.raises(ToolsetError, match=r"t0: .*reward"):
        async with box_of(BadReward()).open(make_task(), make_episode_context()) as session:
            await session.rewards()


async def test_a_cancellation_does_not_cut_a_release_short() -> None:
    class Slow(Counter):
        async def release(self, instance_id: str, **kwargs: Any) -> None:
            reached.set()
            await asyncio.sleep(0.01)
            await super().release(instance_id)

    tool, reached = Slow(), asyncio.Event()

    async def episode() -> None:
        async with box_of(tool).open(make_task(), make_episode_context()):
            pass

    task = asyncio.create_task(episode())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
    assert tool.stages() == ["create", "calc_reward", "release"]


async def test_release_waits_for_a_thread_that_still_uses_the_instance() -> None:
    events: list[str] = []
    running, leave = threading.Event(), threading.Event()

    class Blocking(Tool):
        spec = SPEC

        def execute(self, instance_id: str, parameters: Any) -> str:
            running.set()
            leave.wait(30)
            events.append("execute ended")
            return "late"

        def release(self, instance_id: str) -> None:
            events.append("released")

    async def episode() -> None:
        async with box_of(Blocking()).open(make_task(), make_episode_context()) as session:
            await session.answer([call()])

    task = asyncio.create_task(episode())
    await asyncio.to_thread(running.wait, 30)
    task.cancel()
    await asyncio.sleep(0.01)
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["execute ended", "released"]


async def test_a_stage_may_ask_for_the_episode() -> None:
    class Shares(Tool):
        spec = SPEC

        async def create(self, instance_id: str, episode: EpisodeContext) -> Message:
            episode.shared["task"] = episode.task.id
            return Message("system", "hello")

        async def execute(self, instance_id: str, parameters: Any, *, context: EpisodeContext) -> str:
            return str(context.shared["task"])

    async with box_of(Shares()).open(make_task(), make_episode_context()) as session:
        assert await session.opening() == [Message("system", "hello")]
        (record,) = await session.answer([call()])
        assert record.result.text == "task-0"


class Query(BaseModel):
    query: str = Field(description="What to look for.")
    topk: int = 3


class Searcher(Tool):
    """Looks things up."""

    name = "searcher"

    async def execute(self, instance_id: str, parameters: Query, **kwargs: Any) -> str:
        if parameters.query == "":
            raise ToolError("The query is empty.")
        return f"{parameters.query} {parameters.topk}"


async def test_the_spec_can_come_from_the_hint_of_parameters() -> None:
    toolset = as_toolset(Searcher, None, make_build_context())
    box = ToolBox([ToolEntry("s", toolset)])
    async with box.open(make_task(), make_episode_context()) as session:
        (spec,) = session.specs()
        assert (spec.name, spec.description) == ("searcher", "Looks things up.")
        assert spec.parameters["properties"]["query"]["description"] == "What to look for."
        records = await session.answer([ToolCall("searcher", {"query": "a"}), ToolCall("searcher", {"query": ""})])
        assert [(record.result.text, record.result.error) for record in records] == [
            ("a 3", None),
            ("The query is empty.", "tool_error"),
        ]


def test_a_tool_without_a_spec_or_execute_says_what_to_write() -> None:
    class Mute(Tool):
        def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> str:
            return ""

    class Idle(Tool):
        spec = ToolSpec("idle", "Does nothing.")

    with pytest.raises(ComponentLoadError, match=r"'.*Mute' has no spec for the model. Give it `spec"):
        as_toolset(Mute, None, make_build_context())
    with pytest.raises(ComponentLoadError, match="abstract method execute"):
        as_toolset(Idle, None, make_build_context())


def test_a_spec_in_the_openai_form() -> None:
    form = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    spec = ToolSpec.from_function(form)
    assert spec == ToolSpec("f", "d", {"type": "object"})
    assert ToolSpec.from_function(form["function"]) == spec  # type: ignore[arg-type]
    assert spec.as_function() == form
    with pytest.raises(ValueError, match="a tool schema needs a name"):
        ToolSpec.from_function({"type": "function"})
