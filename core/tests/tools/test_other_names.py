"""Names that a session knows besides those that the model was told, such as short ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from toolrl.protocols import EpisodeContext
from toolrl.tools import as_toolset
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.types import CallError, CallRecord, Task, ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task


class Prefixed:
    """Tools called `<prefix>-<tool>`, which answer to the tool's name alone, too."""

    def __init__(self, prefix: str, *tools: str) -> None:
        self.prefix = prefix
        self.tools = tools
        self.calls: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Prefixed]:
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(f"{self.prefix}-{name}", "A tool.") for name in self.tools]

    def traits(self, name: str) -> ToolTraits:
        return ToolTraits(pure=name.endswith("-pure"))

    def resolve(self, name: str) -> str | None:
        return f"{self.prefix}-{name}" if name in self.tools else None

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call.name)
        return ToolResult(call.name)

    async def reward(self) -> None: ...


def answers(
    toolsets: Sequence[Prefixed], items: Sequence[ToolCall | CallError], task: Task | None = None, **rename: str
) -> list[CallRecord]:
    async def main() -> list[CallRecord]:
        box = ToolBox([ToolEntry(toolset.prefix, toolset, rename=rename) for toolset in toolsets])
        async with box.open(task or make_task(), make_episode_context()) as session:
            return list(await session.answer(items))

    return asyncio.run(main())


def test_a_short_name_calls_the_only_tool_that_has_it() -> None:
    one, two = Prefixed("one", "a", "b"), Prefixed("two", "b")
    records = answers([one, two], [ToolCall("a", {}), ToolCall("one-a", {}), ToolCall("b", {}), ToolCall("c", {})])
    assert [record.result.text for record in records[:2]] == ["one-a", "one-a"]
    assert [record.result.error for record in records[2:]] == ["unknown_tool", "unknown_tool"]
    assert [record.call.name for record in records[:2]] == ["a", "one-a"]  # as the model wrote it


def test_a_name_that_the_model_was_told_comes_first() -> None:
    one, two = Prefixed("one", "a"), Prefixed("two", "b")
    (record,) = answers([one, two], [ToolCall("a", {})], **{"two-b": "a"})
    assert record.result.text == "two-b"


def test_a_tool_that_is_renamed_and_one_that_the_task_leaves_out() -> None:
    one = Prefixed("one", "a", "b")
    records = answers([one], [ToolCall("a", {}), ToolCall("b", {})], make_task(tools=("say",)), **{"one-a": "say"})
    assert [record.result.error for record in records] == [None, "unknown_tool"]


def test_a_call_that_cant_be_read_is_answered_with_the_arguments() -> None:
    (record,) = answers([Prefixed("one", "a")], [CallError("invalid_json", "No JSON.", "a")])
    assert record.result.text == "No JSON. Arguments of 'a': {}"


async def test_toolsets_in_a_list_resolve_like_one() -> None:
    joined = as_toolset([Prefixed("one", "a", "b"), Prefixed("two", "b")], None, make_build_context())
    async with ToolBox([ToolEntry("both", joined)]).open(make_task(), make_episode_context()) as session:
        records = list(await session.answer([ToolCall("a", {}), ToolCall("b", {})]))
    assert [record.result.text for record in records[:1]] == ["one-a"]
    assert records[1].result.error == "unknown_tool"
