"""Whole episodes: many at once that search, over an index of the process and over a server, and what they are worth."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.plugins.registry import load_registry
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import as_toolset
from toolrl.types import CallError, CallRecord, Episode, Message, ParsedTurn, ToolCall
from toolrl_plugin_search.index import Index, open_index
from toolrl_plugin_search.passages import Hit
from toolrl_plugin_search.server import RetrievalServer
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context, make_task

EPISODES = 64


class Hermes:
    """`<tool_call>` with JSON, as much of the form as the tests write."""

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        items: list[ToolCall | CallError] = []
        for match in re.finditer(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
            try:
                value = json.loads(match[1])
                items.append(ToolCall(value["name"], value["arguments"], span=match.span(), raw=match[0]))
            except ValueError:
                items.append(CallError("invalid_json", "No JSON.", span=match.span(), raw=match[0]))
        content = re.sub(r"<tool_call>.*?</tool_call>", "", text, flags=re.DOTALL)
        return ParsedTurn(tuple(items), content, status="calls" if items else "final")

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        return [Message("tool", r.result.text, tool_call_id=r.call.id, name=r.call.name) for r in records]


class Counting:
    """An index that notes the sizes of its batches."""

    def __init__(self, index: Index) -> None:
        self.kind = index.kind
        self._index = index
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.sizes.append(len(queries))
        return self._index.search(queries, topk)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def built(kind: str, name: str, options: dict[str, Any]) -> Any:
    """A component as a run builds it: by its name, from the registry."""
    component = load_registry().get(kind, f"search/{name}").component
    return component.load()(component.load_options()(**options), make_build_context(name))


async def play(tool: str, options: dict[str, Any], script: Sequence[str]) -> list[Episode]:
    """The same episode many times at once."""
    toolset = as_toolset(lambda *_: built("tools", tool, options), None, make_build_context(tool))
    reward = built("rewards", "search_r1", {"step_factor": 0.1})
    env = Environment(
        "default",
        Hermes(),
        FakeChatFormat(),
        ToolBox([ToolEntry(tool, toolset)]),
        rewards=(NamedReward("search_r1", reward, 1.0),),
    )
    limits = Limits(max_turn_tokens=2000, max_episode_tokens=20_000)
    runs = [
        EpisodeRun(
            EpisodePlan(make_task("Who wrote Faust?", id=f"t{n}", answer=["Goethe"]), f"g{n}", 0, seed=n),
            env,
            ScriptedEngine(script),
            limits,
        )
        for n in range(EPISODES)
    ]
    await env.tools.start()
    try:
        return list(await asyncio.gather(*(run.run() for run in runs)))
    finally:
        await env.tools.stop()


@pytest.mark.parametrize(("tool", "topk"), [("search", 2), ("query_rag", 1)])
def test_embedded_and_served_episodes_are_the_same(index_folder: Path, tool: str, topk: int) -> None:
    script = (
        "I search. " + call(tool, query="who wrote faust"),
        "<tool_call>{</tool_call>" + call(tool, query="Goethe play"),
        "So: <answer>Goethe</answer>",
    )
    index = Counting(open_index(index_folder))

    async def run() -> tuple[list[Episode], list[Episode]]:
        before = asyncio.all_tasks()
        embedded = await play(tool, {"index": str(index_folder), "topk": topk}, script)
        async with RetrievalServer(index, port=0) as server:
            served = await play(tool, {"url": server.url, "topk": topk}, script)
        assert asyncio.all_tasks() == before
        return embedded, served

    embedded, served = asyncio.run(run())
    for episode in (*embedded, *served):
        assert episode.failure is None
        assert [entry.turn for entry in episode.rewards] == [None, 0, 1]
        assert episode.reward == pytest.approx(1 + 0.1 - 0.05)
        assert episode.correct == 1
        assert [record.result.error for record in episode.calls] == [None, "malformed", None]
    assert [one.messages for one in embedded] == [one.messages for one in served]
    assert "tragic play by Johann Wolfgang von Goethe" in embedded[0].calls[0].result.text
    assert sum(index.sizes) == 2 * EPISODES + 1, "and one when the run starts"
    assert len(index.sizes) < EPISODES, "calls of many episodes went together"
