"""max_calls_per_turn and max_calls_per_episode."""

from __future__ import annotations

import asyncio
from typing import Any

from toolrl.types import CallError, ToolCall


async def ok(call: ToolCall) -> str:
    await asyncio.sleep(0)
    return "ok"


def outcomes(records: Any) -> list[str]:
    return [record.result.error or record.result.text for record in records]


async def test_the_first_calls_of_a_turn_run_and_the_others_are_answered(scene: Any) -> None:
    tool = scene(ok, {"max_calls_per_turn": 2})
    async with tool.session() as session:
        for _ in range(2):
            records = await session.answer([ToolCall("search", {"n": n}) for n in range(4)])
            assert outcomes(records) == ["ok", "ok", "too_many_calls", "too_many_calls"]
            assert records[2].result.text == (
                "The tool 'search' can be called 2 times in one turn. This call didn't run: make it again in your "
                "next turn if you still need it."
            )
    assert len(tool.begun) == 4


async def test_calls_of_an_episode_are_counted_over_its_turns_and_of_no_other(scene: Any) -> None:
    tool = scene(ok, {"max_calls_per_episode": 3})

    async def episode() -> list[str]:
        seen = []
        async with tool.session() as session:
            for _ in range(3):
                seen += outcomes(records := await session.answer([ToolCall("search", {"n": n}) for n in range(2)]))
            assert "can be called 3 times, which happened already" in records[0].result.text
        return seen

    for seen in await asyncio.gather(episode(), episode()):
        assert seen == ["ok"] * 3 + ["too_many_calls"] * 3


async def test_refused_calls_and_others_do_not_use_the_budget_up(scene: Any) -> None:
    tool = scene(ok, {"max_calls_per_turn": 1, "max_calls_per_episode": 2})
    async with tool.session() as session:
        items = [
            CallError("empty", "?", "search"),
            ToolCall("other", {}),
            ToolCall("search", {}),
            ToolCall("search", {}),
        ]
        assert outcomes(await session.answer(items)) == ["malformed", "unknown_tool", "ok", "too_many_calls"]
        assert outcomes(await session.answer(items[2:])) == ["ok", "too_many_calls"]
        records = await session.answer(items[2:3])
        assert records[0].result.text.startswith("The tool 'search' can be called 2 times, which happened already.")


async def test_the_tools_of_a_set_count_together(scene: Any) -> None:
    tool = scene(ok, {"max_calls_per_episode": 1}, names=("click", "type"))
    async with tool.session() as session:
        first, second = await session.answer([ToolCall("click", {}), ToolCall("type", {})])
        assert (first.result.error, second.result.error) == (None, "too_many_calls")
        assert second.result.text.startswith("The tools of 'engine' together can be called 1 times, which")
