"""Episodes through toolrl's own rollout: every family with a scripted engine, and one with a model of random weights.

The scripted engine samples the ids that a model of the family would; what is checked is what a trainer relies on: each
prompt goes on from the one before, the mask lies on what was sampled, calls are read and answered in the family's form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Generation, Message, Sampling, ToolCall, ToolSpec
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_testing.fakes import RecordingToolset, make_task


class IdEngine:
    """Samples these ids, turn by turn, and remembers the prompts."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = list(turns)
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **_: Any) -> Generation:
        self.prompts.append(tuple(prompt))
        ids = tuple(self.turns[len(self.prompts) - 1])
        assert not set(ids[:-1]) & set(sampling.stop_token_ids), "an engine would have stopped before"
        stopped = ids[-1] in sampling.stop_token_ids
        finish = "stop" if stopped else "length"
        return Generation(ids, (-0.5,) * len(ids), finish, ids[-1] if stopped else None, versions=(0,) * len(ids))

    async def close(self, session: str) -> None:
        pass


def play(chat: Any, parser: Any, turns: Sequence[Sequence[int]], toolset: Any) -> tuple[Episode, IdEngine]:
    engine: Any = IdEngine(turns)
    tools = ToolBox([ToolEntry("look", toolset)])
    environment = Environment("default", parser, chat, tools, max_turns=6)
    limits = Limits(max_turn_tokens=4000, max_episode_tokens=20_000)
    task = make_task()
    run = EpisodeRun(EpisodePlan(task, "group", 0, seed=1), environment, engine, limits)
    return asyncio.run(run.run()), engine


@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_of_every_family(name: str, format_of: Any, parser_of: Any, look: ToolSpec) -> None:
    chat, parser = format_of(name), parser_of(name)
    thought = "So." if chat.open([Message("user", "x")], (look,)).in_thinking else None
    several = name not in ("llama-3", "gpt-oss")
    queries = ("eins 🙂", "zwei") if several else ("eins 🙂",)
    calls = tuple(ToolCall("look", {"query": q}, id=f"functions.look:{n}") for n, q in enumerate(queries))
    calling = chat.say(Message("assistant", "", tool_calls=calls, reasoning=thought))
    # Gemma's second turn goes on in the same model turn; the others begin anew, all with the same prompt's end.
    answer = chat.say(Message("assistant", "Done.", reasoning=thought))
    broken = (*calling[: len(calling) * 2 // 3],)
    toolset = RecordingToolset(lambda call: f"found {call.arguments['query']}", tools=[look])
    episode, engine = play(chat, parser, [calling, broken, answer], toolset)
    assert episode.failure is None, episode.failure
    assert episode.stop_reason == "final"
    first, second, last = episode.turns
    assert [record.call.arguments for record in first.calls] == [dict(call.arguments) for call in calls]
    assert [record.result.text for record in first.calls] == [f"found {query}" for query in queries]
    assert second.calls
    assert second.calls[-1].result.error is not None
    assert last.content == "Done."
    # Each prompt is the one before, what was sampled, and what was given.
    for before, sampled, after in zip(engine.prompts[:-1], (calling, broken), engine.prompts[1:], strict=True):
        assert after[: len(before) + len(sampled)] == (*before, *sampled)
    # The mask lies on what was sampled and nowhere else.
    expected: list[int] = []
    for prompt, sampled in zip(engine.prompts, (calling, broken, answer), strict=True):
        expected += [0] * (len(prompt) - len(expected)) + [1] * len(sampled)
    assert list(episode.loss_mask) == expected
    assert episode.ids == (*engine.prompts[-1], *answer)
    # Calls lead back to the tokens that they were read from.
    for record in first.calls:
        assert record.call.tokens is not None
        assert "look" in chat.decode(episode.ids[slice(*record.call.tokens)]).text
    # What a tool says stands in the family's own form.
    between = chat.decode(engine.prompts[1][len(engine.prompts[0]) + len(calling) :]).text
    assert all(f"found {query}" in between for query in queries)
