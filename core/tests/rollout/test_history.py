"""A history that is rewritten in the turn loop: what the model reads next, what is trained, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolrl.protocols import EpisodeContext, Model
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Message, Task, ToolResult, ToolSpec
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    RecordingToolset,
    ScriptedEngine,
    make_task,
)

ASKED = Message("user", "Sum up.")
Rewrite = Callable[[Model, Sequence[Message], Sequence[ToolSpec], int, int], Any]


class Rewriter:
    """A toolset without tools that rewrites."""

    def __init__(self, work: Rewrite) -> None:
        self.work = work

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Rewriter]:
        assert episode.model is not None
        self.model = episode.model
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    async def rewrite(self, *given: Any) -> Any:
        return await self.work(self.model, *given)

    async def reward(self) -> None:
        return None


def episode_of(
    *works: Rewrite, turns: int = 4, limit: int = 4000, result: str = "r" * 50, more: Sequence[ToolEntry] = ()
) -> tuple[Episode, Any]:
    """Each turn but the last calls a tool. The model says `s` when it is asked to sum up."""
    engine = ScriptedEngine(lambda prompt: "s" if ASKED.content in prompt[-30:] else "c" if "!" not in prompt else "e")
    tools = RecordingToolset(lambda call: ToolResult(result))
    entries = [ToolEntry("tools", tools), *(ToolEntry(f"history{n}", Rewriter(it)) for n, it in enumerate(works))]
    entries += more
    parser = FakeParser(lambda text: ["echo"] if text == "c" else [])
    environment = Environment("default", parser, FakeChatFormat(), ToolBox(entries), max_turns=turns)
    run = EpisodeRun(EpisodePlan(make_task(), "group", 0, seed=1), environment, engine, Limits(40, limit))
    return asyncio.run(run.run()), engine


async def summed_up(
    model: Model, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
) -> Any:
    """Once four messages are there."""
    if len(messages) < 5:
        return None
    summary = await model.ask([*messages, ASKED], tools)
    return [messages[0], Message("user", f"So far: {summary.content}")]


def test_a_summary_is_asked_behind_the_history_and_another_trajectory_begins_with_it() -> None:
    episode, engine = episode_of(summed_up)
    assert episode.failure is None
    first, second = episode.trajectories
    assert [turn.index for turn in first.turns] == [0, 1, 2], "the summary is the last turn of the first"
    assert [turn.index for turn in second.turns] == [3, 4]
    assert [it.role for it in episode.trajectories] == ["agent"] * 2
    assert (episode.main, episode.stop_reason) == (second, "max_turns"), "a summary is no turn of the conversation"
    assert [it.content for it in episode.messages[1:3]] == ["So far: s", "c"]
    assert len({record.call.id for record in episode.calls}) == len(episode.calls) == 4
    prompts = {it.prompt for it in engine.generated}
    for trajectory in episode.trajectories:
        for turn in trajectory.turns:
            assert trajectory.ids[: turn.segments[0].tokens[0]] in prompts
    assert episode.sampled_tokens == sum(len(it.generation.ids) for it in engine.generated)
    assert (episode.metrics["tool/history0/rewrites"], episode.metrics["model/extended"]) == (1.0, 1.0)


def test_a_question_that_changes_nothing_is_no_part_of_the_conversation() -> None:
    async def asks(model: Model, messages: Sequence[Message], tools: Sequence[ToolSpec], *_: int) -> None:
        await model.ask([*messages, ASKED], tools)

    episode, _ = episode_of(asks, turns=2)
    first, second = episode.trajectories
    assert [len(it.turns) for it in episode.trajectories] == [2, 1]
    assert second.ids[: second.prompt_length][:30] == first.ids[:30]
    assert all(message != ASKED for message in episode.messages)
    assert len(episode.messages) == 5


def test_each_rewriter_has_what_the_one_before_it_made() -> None:
    seen: list[tuple[str, int]] = []

    def adds(letter: str) -> Rewrite:
        async def work(model: Model, messages: Sequence[Message], tools: Any, tokens: int, limit: int) -> Any:
            seen.append((messages[-1].content, tokens))
            return [messages[0], Message("user", messages[-1].content + letter)]

        return work

    episode, engine = episode_of(adds("a"), adds("b"), turns=2, result="r")
    assert [content for content, _ in seen] == ["r", "ra"]
    assert len(engine.generated[1].prompt) == seen[1][1] + 1, "tokens are those of the prompt as it is"
    assert episode.messages[1].content == "rab"


def test_a_history_that_no_longer_fits_is_rewritten_before_the_episode_gives_up() -> None:
    async def cuts(model: Model, messages: Sequence[Message], tools: Any, tokens: int, limit: int) -> Any:
        return messages[:1] if tokens >= limit else None

    async def still_too_long(model: Model, messages: Sequence[Message], *_: Any) -> Any:
        return messages

    assert episode_of(limit=150)[0].stop_reason == "context_full"
    episode, _ = episode_of(still_too_long, limit=150)
    assert (episode.stop_reason, len(episode.trajectories)) == ("context_full", 1)
    episode, _ = episode_of(cuts, limit=150)
    assert (episode.stop_reason, len(episode.calls)) == ("max_turns", 4)
    assert max(len(it.ids) for it in episode.trajectories) <= 150


def test_a_question_that_is_left_unanswered_is_refused() -> None:
    async def leaves(model: Model, messages: Sequence[Message], tools: Any, *_: Any) -> None:
        left.append(asyncio.ensure_future(model.ask([*messages, ASKED], tools)))
        await asyncio.sleep(0)

    left: list[Any] = []
    failure = episode_of(leaves)[0].failure
    assert left[0].exception()
    assert failure is not None
    assert "left unanswered" in failure.message
