"""The cache of pure tools: what is kept, what runs once, what is never shared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ConfigError, ToolError
from toolrl.protocols import EpisodeContext
from toolrl.tools import Tool, as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import token_cut
from toolrl.types import ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import FakeChatFormat, make_build_context, make_episode_context, make_task

pytestmark = pytest.mark.virtual_time

PURE = ToolTraits(pure=True)


async def echo(call: ToolCall) -> str:
    await asyncio.sleep(1)
    return f"about {call.arguments}"


async def test_equal_calls_of_other_episodes_are_answered_from_the_cache(scene: Any) -> None:
    search = scene(echo, {"cache": 10}, traits=PURE)
    first = await search.ask("a", q="x", k=1)
    second = await search.ask("b", k=1, q="x")
    assert first.result.text == second.result.text == "about {'q': 'x', 'k': 1}"
    assert [r.result.metrics["policy/cache_hits"] for r in (first, second)] == [0, 1]
    for other in ({"q": "x", "k": 1.0}, {"q": "x", "k": True}, {"q": "y", "k": 1}, {}):
        await search.ask(**other)
    assert len(search.begun) == 5


async def test_the_least_recently_asked_for_goes_first(scene: Any) -> None:
    search = scene(echo, {"cache": 2}, traits=PURE)
    counts = []
    for q in "ababcabc":
        await search.ask(q=q)
        counts.append(len(search.begun))
    assert counts == [1, 2, 2, 2, 3, 4, 5, 6]


async def test_equal_calls_at_once_run_once(scene: Any) -> None:
    search = scene(echo, {"cache": 2}, traits=PURE)
    records = await asyncio.gather(*(search.ask(str(n), q="x") for n in range(20)))
    assert {record.result.text for record in records} == {"about {'q': 'x'}"}
    assert sum(record.result.metrics["policy/cache_hits"] for record in records) == 19
    assert asyncio.get_running_loop().time() == pytest.approx(1)
    assert len(search.begun) == 1


async def test_where_the_one_that_runs_is_cancelled_the_next_takes_its_place(scene: Any) -> None:
    search = scene(echo, {"cache": 2}, traits=PURE)
    tasks = [asyncio.create_task(search.ask(str(n), q="x")) for n in range(4)]
    await asyncio.sleep(0.5)
    tasks[0].cancel()
    tasks[2].cancel()  # One that waits.
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(it, asyncio.CancelledError) for it in done] == [True, False, True, False]
    assert done[1].result.text == done[3].result.text == "about {'q': 'x'}"
    assert asyncio.get_running_loop().time() == pytest.approx(1.5)
    assert len(search.begun) == 2


@pytest.mark.parametrize("error", [ToolError("nothing found"), ValueError("bad page"), SystemExit(2)])
async def test_errors_are_shared_by_waiting_calls_and_never_kept(scene: Any, error: BaseException) -> None:
    async def respond(call: ToolCall) -> str:
        await asyncio.sleep(1)
        raise error

    search = scene(respond, {"cache": 2}, traits=PURE)
    records = await asyncio.gather(*(search.ask(str(n)) for n in range(5)))
    assert len({record.result.text for record in records}) == 1
    assert all(record.result.error in ("tool_error", "crash") for record in records)
    await search.ask()
    assert len(search.begun) == 2


async def test_what_ends_an_episode_or_is_an_error_is_not_kept(scene: Any) -> None:
    async def respond(call: ToolCall) -> ToolResult:
        return ToolResult("bye", done=bool(call.arguments), error=None if call.arguments else "tool_error")

    search = scene(respond, {"cache": 2}, traits=PURE)
    for arguments in ({}, {}, {"x": 1}, {"x": 1}):
        await search.ask(**arguments)
    assert len(search.begun) == 4


async def test_a_tasks_kwargs_are_part_of_the_question(scene: Any) -> None:
    search = scene(echo, {"cache": 9}, traits=PURE)
    for kwargs in (
        {},
        {"create_kwargs": {"index": "wiki"}},
        {"execute_kwargs": {"k": 2}},
        {"release_kwargs": {"a": 1}},
    ):
        await search.ask(task=make_task(tools_kwargs={"search": kwargs}))
    assert len(search.begun) == 3  # What release is given changes no answer.


async def test_what_is_kept_is_cut() -> None:
    runs = []

    @tool(pure=True)
    async def book() -> str:
        """A long text."""
        runs.append(1)
        return "x" * 1_000_000

    entry = ToolEntry(
        "b", as_toolset(book, None, make_build_context()), policy=PolicyOptions(cache=4, max_output_tokens=50)
    )
    box = ToolBox([entry], cut=token_cut(FakeChatFormat()))
    for _ in range(2):
        async with box.open(make_task(), make_episode_context()) as session:
            (record,) = await session.answer([ToolCall("book", {})])
            assert record.result.truncated
            assert len(record.result.text) <= 50
    assert runs == [1]


def test_only_pure_tools_that_take_no_episode_can_be_cached() -> None:
    @tool
    def now() -> str:
        """The time."""
        return ""

    @tool(pure=True)
    def frames(episode: EpisodeContext) -> str:
        """Of the episode's video."""
        return ""

    class Reader(Tool):
        spec = ToolSpec("reader", "")
        pure = True

        def create(self, instance_id: str, context: EpisodeContext) -> None:
            pass

        def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
            return ""

    @tool(pure=True)
    def square(x: int) -> int:
        """x²"""
        return x * x

    def box(*targets: Any) -> ToolBox:
        toolset = as_toolset(list(targets), None, make_build_context())
        return ToolBox([ToolEntry("t", toolset, policy=PolicyOptions(cache=5))])

    for target in (now, frames, Reader):
        with pytest.raises(ConfigError, match=r"t: policy.cache: '\w+' can't use it: only a tool that is `pure`"):
            asyncio.run(box(target).start())
    asyncio.run(box(square).start())
    asyncio.run(box(now, square).start())  # One of them can.
