"""What components raise that is no Exception: it is the episode's data like any other failure, and ends no run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.parsing.flags import EndFlags
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools import Tool, as_toolset
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, ToolSpec
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    FixedReward,
    RecordingToolset,
    ScriptedEngine,
    make_build_context,
    make_task,
)


class Panic(BaseException):
    """What a Rust extension's panic is to Python."""


STRAY = [SystemExit(3), asyncio.CancelledError("inner"), Panic("index out of bounds")]
STRAY_IDS = ["exit", "cancelled", "panic"]


PARSER = FakeParser(lambda text: ["t"] if text == "call" else [])


def tool_that_raises(stage: str, error: BaseException, *, thread: bool) -> tuple[Tool, list[str]]:
    seen: list[str] = []

    class Raising(Tool):
        spec = ToolSpec("t", "Raises.")

        def execute(self, instance_id: str, parameters: Any, **_: Any) -> str:
            return "ok"

        async def release(self, instance_id: str, **_: Any) -> None:
            seen.append("release")

    def in_thread(self: Any, *_: Any, **__: Any) -> None:
        seen.append(stage)
        raise error

    async def on_loop(self: Any, *_: Any, **__: Any) -> None:
        in_thread(self)

    setattr(Raising, stage, in_thread if thread else on_loop)
    return Raising(), seen


def run(toolset: Any, *, reward: Any = None, engine: Any = None, episodes: int = 2) -> list[Episode]:
    rewards = (NamedReward("r", reward or FixedReward(1.0)),)
    box = ToolBox([ToolEntry("t", toolset)])
    env = Environment(
        "default",
        PARSER,
        FakeChatFormat(),
        box,
        rewards,
        end_flags=EndFlags(()),
    )

    async def main() -> list[Episode]:
        runner = Runner(engine or ScriptedEngine(["call", "done"]), {"default": env}, max_error_rate=1.0)
        await box.start()
        groups = await runner.run([make_task()], episodes, Limits(50, 500), round_id="step-1")
        await box.stop()
        return list(groups[0].episodes)

    return asyncio.run(main())


@pytest.mark.parametrize("thread", [True, False], ids=["thread", "loop"])
@pytest.mark.parametrize("error", STRAY, ids=STRAY_IDS)
@pytest.mark.parametrize("stage", ["create", "calc_reward"])
def test_a_stage_ends_its_own_episode_and_the_instance_is_released(
    stage: str, error: BaseException, thread: bool
) -> None:
    made, seen = tool_that_raises(stage, error, thread=thread)
    for episode in run(as_toolset(made, None, make_build_context())):
        assert episode.failure is not None
        assert episode.failure.fault == "tool"
        assert type(error).__name__ in episode.failure.message
    assert seen.count(stage) == seen.count("release") == 2


@pytest.mark.parametrize("thread", [True, False], ids=["thread", "loop"])
@pytest.mark.parametrize("error", STRAY, ids=STRAY_IDS)
def test_a_call_is_answered_with_the_crash(error: BaseException, thread: bool) -> None:
    made, _ = tool_that_raises("execute", error, thread=thread)
    for episode in run(as_toolset(made, None, make_build_context())):
        assert episode.failure is None
        assert episode.calls[0].result.error == "crash"
        assert type(error).__name__ in episode.calls[0].result.text


@pytest.mark.parametrize("error", STRAY, ids=STRAY_IDS)
def test_a_reward_ends_its_own_episode(error: BaseException) -> None:
    class Raising:
        async def score(self, episode: Episode) -> Score:
            raise error

    for episode in run(RecordingToolset(), reward=Raising()):
        assert episode.failure is not None
        assert (episode.failure.fault, "'r'" in episode.failure.message) == ("reward", True)


@pytest.mark.parametrize("error", [*STRAY, ValueError("lost")], ids=[*STRAY_IDS, "value"])
@pytest.mark.parametrize("method", ["generate", "close"])
def test_an_engine_ends_the_episode_alone(method: str, error: BaseException) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise error

    engine = ScriptedEngine(["done"])
    setattr(engine, method, broken)
    for episode in run(RecordingToolset(), engine=engine):
        assert episode.failure is not None
        assert episode.stop_reason == "error"
        assert episode.failure.fault == "engine"
        assert episode.sampled_tokens == (0 if method == "generate" else len(episode.ids) - episode.prompt_length)


async def test_a_cancellation_from_outside_still_arrives() -> None:
    class Slow:
        async def score(self, episode: Episode) -> Score:
            await asyncio.sleep(60)
            raise AssertionError("nobody cancelled")

    env = Environment(
        "default",
        PARSER,
        FakeChatFormat(),
        ToolBox([]),
        (NamedReward("slow", Slow()),),
        end_flags=EndFlags(()),
    )
    runner = Runner(ScriptedEngine(["done"]), {"default": env})
    work = asyncio.ensure_future(runner.run([make_task()], 2, Limits(50, 500), round_id="step-1"))
    await asyncio.sleep(0.05)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
