"""The cache of pure tools: what is kept, what runs once, what is never shared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult
from toolrl_testing.fakes import make_task

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
