"""A harness plays the episode: how it ends, what it is given, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from toolrl.errors import EngineError, EpisodeEndedError
from toolrl.parsing.items import tool_messages
from toolrl.protocols import EpisodeContext, Model, Outcome
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Message, Score, Task, ToolResult
from toolrl_testing.fakes import FakeChatFormat, FakeParser, FixedReward, RecordingToolset, ScriptedEngine, make_task

Play = Callable[[Task, Model, EpisodeContext], Awaitable[Any]]
CALLING = FakeParser(lambda text: ["echo"] if "call" in text else [])


class Playing:
    """A harness whose `play` is a function."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.events: list[str] = []

    async def start(self) -> None:
        self.events.append("start")

    async def stop(self) -> None:
        self.events.append("stop")


def environment_of(play: Play, **fields: Any) -> Environment:
    tools = fields.pop("tools", ToolBox([]))
    return Environment("default", CALLING, FakeChatFormat(), tools, harness=Playing(play), **fields)


def episode_of(play: Play, script: Any = "ok", limits: Limits = Limits(40, 400), **fields: Any) -> Episode:
    engine = ScriptedEngine(script if callable(script) else lambda _: script)
    run = EpisodeRun(EpisodePlan(make_task(), "group", 0, seed=1), environment_of(play, **fields), engine, limits)
    return asyncio.run(run.run())


async def once(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    await model.ask(task.messages)
    return Outcome()


def test_what_a_harness_gives_is_the_episode() -> None:
    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        turn = await model.ask(task.messages)
        episode.notes["seen"] = turn.content
        return Outcome("4", Score(0.5, per_role={"agent": 0.25}, metrics={"correct": 1.0}), stop="timeout")

    episode = episode_of(play, rewards=[NamedReward("fixed", FixedReward(1.0))])
    assert episode.failure is None
    assert (episode.answer, episode.stop_reason, episode.notes) == ("4", "timeout", {"seen": "ok"})
    parts = [(it.source, it.value, it.role) for it in episode.rewards]
    assert parts == [("reward:harness", 0.5, None), ("reward:harness", 0.25, "agent"), ("reward:fixed", 1.0, None)]
    assert episode.correct == 1.0
    assert [len(it.turns) for it in episode.trajectories] == [1]
    assert episode.messages[-1].content == "ok"
    assert {key: value for key, value in episode.metrics.items() if key.startswith("model/")} == {
        "model/opened": 1.0,
        "model/extended": 0.0,
        "model/forked": 0.0,
    }


def test_the_environments_tools() -> None:
    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        assert episode.tools is not None
        messages = [*task.messages]
        turn = await model.ask(messages, episode.tools.specs())
        messages += [turn.message, *tool_messages(await episode.tools.answer(turn.items))]
        await model.ask(messages, episode.tools.specs())
        return Outcome()

    tools = RecordingToolset(lambda call: ToolResult("the answer", reward=2.0), reward=3.0)
    episode = episode_of(play, lambda prompt: "done" if "the answer" in prompt else "call", call_cost=0.5,
                         tools=ToolBox([ToolEntry("set", tools)]))  # fmt: skip
    assert episode.failure is None
    assert [(it.turn, it.source, it.value) for it in episode.rewards] == [
        (0, "step:echo", 2.0),
        (0, "call_cost", -1.0),
        (None, "tool:echo", 3.0),
    ]
    assert [len(turn.calls) for turn in episode.turns] == [1, 0]
    assert len(episode.trajectories) == 1


@pytest.mark.parametrize("change", ["ids", "no ids"])
def test_calls_are_answered_by_a_later_question(change: str) -> None:
    """By the messages that a client sends back, whose call ids may be its own."""

    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        turn = await model.ask(task.messages)
        message, ids = turn.message, [call.id for call in turn.items]
        if change == "no ids":
            ids = ["", ""]
            message = replace(message, tool_calls=tuple(replace(it, id="") for it in message.tool_calls))
        answers = [Message("tool", text, tool_call_id=name) for text, name in zip("ab", ids, strict=True)]
        await model.ask([*task.messages, message, *(answers[::-1] if change == "ids" else answers)])
        return Outcome()

    parser = FakeParser(lambda text: ["echo", "other"] if "call" in text else [])
    environment = replace(environment_of(play), parser=parser)
    engine = ScriptedEngine(lambda prompt: "done" if "call" in prompt else "call")
    run = EpisodeRun(EpisodePlan(make_task(), "group", 0, seed=1), environment, engine, Limits(40, 400))
    episode = asyncio.run(run.run())
    assert [(it.call.name, it.result.text) for it in episode.calls] == [("echo", "a"), ("other", "b")]
    assert len(episode.trajectories) == 1


async def raises(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    await model.ask(task.messages)
    raise KeyError("nothing")


async def asks_nothing(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    return Outcome("4")


async def gives_text(task: Task, model: Model, episode: EpisodeContext) -> str:
    await model.ask(task.messages)
    return "4"


async def gives_up_alone(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    await model.ask(task.messages)
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("play", "says"),
    [
        (raises, "it raised KeyError: 'nothing'"),
        (asks_nothing, "it ended as 'final' without asking the model"),
        (gives_text, "gave str '4', expected an Outcome"),
        (gives_up_alone, "CancelledError"),
    ],
)
def test_failures_of_a_harness(play: Play, says: str) -> None:
    episode = episode_of(play)
    assert episode.failure is not None
    assert episode.failure.fault == "harness"
    assert says in episode.failure.message
    assert (episode.stop_reason, episode.sampled_tokens) == ("error", 0 if play is asks_nothing else 3)


@pytest.mark.parametrize(
    ("said", "limits", "role", "stop"),
    [
        ("x" * 99, Limits(40, 400), "agent", "max_tokens"),
        ("x" * 999, Limits(400, 400), "agent", "context_full"),
        ("call " + "x" * 99, Limits(40, 400), "agent", "final"),  # A whole call can still be answered.
        ("x" * 99, Limits(40, 400), "critic", "final"),
    ],
)
def test_an_episode_that_ends_in_a_cut_turn_is_truncated(said: str, limits: Limits, role: str, stop: str) -> None:
    """Whatever its harness knows of it."""

    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        turn = await model.ask(task.messages)
        await model.ask([*task.messages, turn.message, Message("user", "Go on.")], role=role)
        return Outcome()

    episode = episode_of(play, lambda prompt: said if "Go on." in prompt else "ok", limits)
    assert (episode.failure, episode.stop_reason) == (None, stop)
    assert episode.turns[-1].finish == "length"


def test_a_turn_that_was_cut_and_gone_on_from_is_no_end() -> None:
    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        turn = await model.ask(task.messages, max_tokens=1)
        await model.ask([*task.messages, turn.message, Message("user", "Go on.")])
        return Outcome()

    assert episode_of(play).stop_reason == "final"


def test_the_tokens_of_a_prompt_are_counted_without_a_turn() -> None:
    counted: list[int] = []

    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        counted.append(model.count(task.messages))
        return await once(task, model, episode)

    episode = episode_of(play)
    assert (counted, len(episode.turns)) == ([episode.main.prompt_length], 1)


def test_an_engine_that_fails_is_no_failure_of_the_harness() -> None:
    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        try:
            return await once(task, model, episode)
        except EngineError as error:
            raise RuntimeError("the model is away") from error

    def script(prompt: str) -> str:
        raise EngineError("it broke")

    failure = episode_of(play, script).failure
    assert failure is not None
    assert (failure.fault, failure.message) == ("engine", "EngineError: it broke")


def test_questions_of_an_episode_that_ended() -> None:
    """What is still being sampled is cancelled, and later questions are refused."""
    late: list[asyncio.Task[Any]] = []

    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        await model.ask(task.messages)
        late.append(asyncio.ensure_future(model.ask([Message("user", "slow")])))
        await asyncio.sleep(0)
        return Outcome()

    async def main() -> Episode:
        engine = ScriptedEngine(["ok"], latency=0.01)
        environment = environment_of(play)
        episode = await EpisodeRun(EpisodePlan(make_task(), "g", 0, seed=1), environment, engine, Limits(40, 400)).run()
        assert engine._running == 0
        with pytest.raises(EpisodeEndedError, match="while the model answered"):
            await late[0]
        return episode

    episode = asyncio.run(main())
    assert (episode.failure, len(episode.trajectories)) == (None, 1)


def test_a_run_that_is_cancelled_cancels_its_harnesses() -> None:
    """And starts and stops them."""
    going, ended = asyncio.Event(), []

    async def play(task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        await model.ask(task.messages)
        try:
            going.set()
            await asyncio.sleep(600)
        finally:
            ended.append(episode.episode_id)
        return Outcome()

    environment = environment_of(play)

    async def main() -> None:
        await environment.start()
        runner = Runner(ScriptedEngine(["ok"]), {"default": environment})
        job = asyncio.ensure_future(runner.run([make_task()], 1, Limits(40, 400), round_id="train-1"))
        await going.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        await environment.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert len(ended) == 1
    assert isinstance(environment.harness, Playing)
    assert environment.harness.events == ["start", "stop"]
