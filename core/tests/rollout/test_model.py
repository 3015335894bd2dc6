"""The parts of an episode ask its model: whatever they do to the messages in between, each sample stands once behind
exactly what the model read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import EngineError, ToolError
from toolrl.protocols import EpisodeContext, Model
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import (
    Episode,
    Message,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)  # fmt: skip
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_task

Play = Callable[[Model], Awaitable[Any]]


class Asking:
    """A toolset whose only tool plays with the model."""

    def __init__(self, play: Play) -> None:
        self.play = play

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Asking]:
        assert episode.model is not None
        self.model = episode.model
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec("play", "Plays.")]

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(str(await self.play(self.model)))

    async def respond(self, turn: Turn) -> None:
        return None

    async def reward(self) -> None:
        return None


class Flaky(ScriptedEngine):
    """Says what follows from the prompt, after a moment in which it can be cancelled; `broken` prompts fail."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"{sum(map(ord, prompt)) % 7}")

    async def generate(self, prompt: Sequence[int], *given: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        if ord("!") in prompt:
            raise EngineError("it broke")
        if ord("%") in prompt:
            raise RuntimeError("out of memory")
        return await super().generate(prompt, *given, **more)


def episode_of(
    play: Play, *, limit: int = 5000, chat: Any = None, toolset: type = Asking, **fields: Any
) -> tuple[Episode, Flaky]:
    engine = Flaky()
    parser = FakeParser(lambda text: ["play"] if engine.calls == 1 else [])
    tools = ToolBox([ToolEntry("asking", toolset(play))])
    environment = Environment("default", parser, chat or FakeChatFormat(), tools, max_turns=2, **fields)
    run = EpisodeRun(EpisodePlan(make_task(), "group", 0, seed=1), environment, engine, Limits(40, limit))
    return asyncio.run(run.run()), engine


KINDS = ["say", "again", "edit", "cut", "fork", "both", "give up"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 9)), max_size=12)


@settings(deadline=None)
@given(steps)
def test_each_sample_is_recorded_once_behind_what_the_model_read(steps: list[tuple[str, int, int]]) -> None:
    async def play(model: Model) -> None:
        histories = [[Message("user", "a")]]

        async def say(history: list[Message], role: str = "agent") -> None:
            turn = await model.ask(history, role=role)
            history += [turn.message, Message("user", "b")]

        for what, which, place in steps:
            history = histories[which % len(histories)]
            if what == "say":
                await say(history, "agent" if place else "other")
            elif what == "again":
                await model.ask(history)
            elif what == "edit":
                history[place % len(history)] = replace(history[place % len(history)], content="changed")
            elif what == "cut":
                del history[1 : place + 1]
            elif what == "fork":
                histories.append(list(history))
            elif what == "both":
                await asyncio.gather(say(history[:]), say(history[:]))
            else:
                job = asyncio.ensure_future(model.ask(history))
                await asyncio.sleep(0)
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)

    episode, engine = episode_of(play)
    assert episode.failure is None
    assert [record.result.error for record in episode.calls] == [None]
    recorded: Counter[Any] = Counter()
    for trajectory in episode.trajectories:
        own = [0] * len(trajectory.ids)
        for turn in trajectory.turns:
            ((start, end),) = (segment.tokens for segment in turn.segments)
            recorded[trajectory.ids[:start], trajectory.ids[start:end]] += 1
            own[start:end] = [1] * (end - start)
        assert list(trajectory.loss_mask) == own
    assert recorded == Counter((it.prompt, it.generation.ids) for it in engine.generated)
    assert episode.sampled_tokens == sum(len(it.generation.ids) for it in engine.generated)
    assert [turn.index for turn in episode.turns] == sorted({turn.index for turn in episode.turns})
    assert Counter(engine.closed).keys() >= {it.session for it in engine.generated}


def test_a_conversation_that_is_continued_is_one_trajectory() -> None:
    """Also beside another that is interleaved with it; a role that isn't trained says so."""

    async def play(model: Model) -> str:
        one, other = [Message("user", "one")], [Message("user", "other")]
        for _ in range(3):
            for history, role in ((one, "agent"), (other, "user")):
                turn = await model.ask(history, role=role)
                history += [turn.message, Message("user", "go on")]
        return one[-2].content

    episode, _ = episode_of(play, untrained_roles=["user"])
    found = [(it.role, it.trained, [turn.index for turn in it.turns]) for it in episode.trajectories]
    assert found == [("agent", True, [0, 7]), ("agent", True, [1, 3, 5]), ("user", False, [2, 4, 6])]
    assert episode.main is episode.trajectories[0]
    assert episode.messages[2].content == episode.trajectories[1].turns[-1].content


def test_answers_to_parallel_calls_are_read_in_the_order_of_the_calls() -> None:
    said = Message("assistant", tool_calls=(ToolCall("f", {}, id="a"), ToolCall("f", {}, id="b")))
    answers = [Message("tool", "first", tool_call_id="a"), Message("tool", "second", tool_call_id="b")]

    async def play(model: Model) -> None:
        for order in (answers, answers[::-1]):
            await model.ask([Message("user", "?"), said, *order], exact=False)

    one, other = (it.prompt for it in episode_of(play)[1].generated[1:3])
    assert one == other


def test_seeds_follow_from_what_is_asked() -> None:
    def seeds(*order: str) -> set[tuple[Any, int | None]]:
        async def play(model: Model) -> None:
            await asyncio.gather(*(model.ask([Message("user", it)]) for it in order))

        return {(it.prompt, it.sampling.seed) for it in episode_of(play)[1].generated[1:-1]}

    assert seeds("a", "b", "a") == seeds("a", "a", "b")
    assert len(seeds("a", "b", "a")) == 3


def test_limits_of_a_question() -> None:
    async def play(model: Model) -> None:
        turn = await model.ask([Message("user", "a")], max_tokens=1, stop=["x"])
        assert turn.finish == "length"
        await model.ask([Message("user", "a" * 200)])

    episode, engine = episode_of(play, limit=200)
    assert engine.generated[1].sampling.max_new_tokens == 1
    assert "x" in engine.generated[1].sampling.stop
    assert "leaves no room in rollout.max_episode_tokens" in episode.calls[0].result.text
    assert episode.calls[0].result.error == "tool_error"


@pytest.mark.parametrize(("text", "says"), [("!", "it broke"), ("%", "it raised RuntimeError: out of memory")])
def test_an_engine_that_fails_is_no_failure_of_the_tool(text: str, says: str) -> None:
    async def play(model: Model) -> str:
        try:
            await model.ask([Message("user", text)])
        except EngineError:
            return "never mind"
        raise AssertionError

    episode, _ = episode_of(play)
    assert episode.failure is not None
    assert (episode.failure.fault, len(episode.trajectories)) == ("engine", 1)
    assert says in episode.failure.message


def test_nothing_is_asked_after_the_end() -> None:
    kept: list[Model] = []

    async def play(model: Model) -> None:
        kept.append(model)

    episode, _ = episode_of(play)

    with pytest.raises(ToolError, match="the episode has ended"):
        asyncio.run(kept[0].ask([Message("user", "a")]))
    assert len(episode.trajectories) == 1
