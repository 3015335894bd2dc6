"""create, calc_reward and release once each, in that order, however an episode ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolsetError
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools import Tool, ToolError, as_toolset
from toolrl.tools.cancellation import CLEANUP_SECONDS
from toolrl.tools.lifecycle import RELEASE_SECONDS
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, ToolCall, ToolSpec
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    FixedReward,
    ScriptedEngine,
    make_build_context,
    make_episode_context,
    make_task,
)

ONCE = ["create", "execute", "calc_reward", "release"]
SESSION_SECONDS = 20.0


class Staged(Tool):
    """Notes its stages. One of them may raise, or wait until it is cancelled; a stubborn one then begins anew, once."""

    spec = ToolSpec("stage", "")

    def __init__(
        self, raises: str = "", hangs: str = "", *, error: BaseException | None = None, stubborn: bool = False
    ) -> None:
        super().__init__()
        self.stages: list[str] = []
        self.reached = asyncio.Event()
        self._raises = raises
        self._hangs = hangs
        self._error = error if error is not None else OSError("gone")
        self._stubborn = stubborn

    async def _note(self, stage: str) -> None:
        self.stages.append(stage)
        if stage == self._raises:
            raise self._error
        if stage == self._hangs:
            self.reached.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise
                await asyncio.sleep(3600)  # The mistake under test.

    async def create(self, instance_id: str, **kwargs: Any) -> None:
        await self._note("create")

    async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
        await self._note("execute")
        return "ok"

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        await self._note("calc_reward")
        return 2.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await self._note("release")


def calls(text: str) -> list[str]:
    """What a turn calls."""
    if text == "broken":
        raise ValueError("a parser that raises")
    return ["stage"] if text == "call" else []


class RaisingReward:
    async def score(self, episode: Episode) -> Score:
        raise ValueError("no answer")


def episode(tool: Tool, *texts: str, reward: Any = None, engine: ScriptedEngine | None = None) -> EpisodeRun:
    box = ToolBox([ToolEntry("stage", as_toolset(tool, None, make_build_context()))])
    environment = Environment(
        "default", FakeParser(calls), FakeChatFormat(), box, [NamedReward("r", reward or FixedReward())], max_turns=5
    )
    plan = EpisodePlan(make_task(), "g", 0, 1)
    return EpisodeRun(plan, environment, engine or ScriptedEngine(texts), Limits(100, 1000))


@pytest.mark.parametrize(
    ("tool", "texts", "fault", "stages"),
    [
        (Staged(), ["call", "done"], None, ONCE),
        (Staged("execute"), ["call", "done"], None, ONCE),
        (Staged("execute", error=ToolError("no")), ["call", "done"], None, ONCE),
        (Staged(), ["call", "broken"], "parser", ONCE),
        (Staged(), ["call"], "engine", ONCE),  # The engine has no more to say.
        (Staged("calc_reward"), ["call", "done"], "tool", ONCE),
        (Staged("release"), ["call", "done"], None, ONCE),
        (Staged("create"), ["call", "done"], "tool", ["create", "release"]),
        (Staged(), ["call", "done"], "reward", ONCE),
    ],
)
def test_however_an_episode_ends(tool: Staged, texts: list[str], fault: str | None, stages: list[str]) -> None:
    finished = asyncio.run(episode(tool, *texts, reward=RaisingReward() if fault == "reward" else None).run())
    assert (finished.failure.fault if finished.failure else None) == fault
    assert tool.stages == stages
    given = [entry.value for entry in finished.rewards if entry.source == "tool:stage"]
    assert given == ([2.0] if fault in (None, "reward") else [])


@pytest.mark.parametrize("stage", ["create", "execute", "calc_reward"])
async def test_also_where_the_episode_is_cancelled(stage: str) -> None:
    tool = Staged(hangs=stage)
    task = asyncio.create_task(episode(tool, "call", "done").run())
    await tool.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stages = tool.stages
    # Where create was cancelled nobody knows whether there is an instance to reward.
    assert stages == (["create", "release"] if stage == "create" else ONCE)


@pytest.mark.parametrize("raises", [False, True])
async def test_a_create_that_goes_on_in_its_thread_made_an_instance_unless_it_raised(raises: bool) -> None:
    stages: list[str] = []
    running, leave = threading.Event(), threading.Event()

    class Slow(Tool):
        spec = ToolSpec("stage", "")

        def create(self, instance_id: str, **kwargs: Any) -> None:
            running.set()
            leave.wait(30)
            stages.append("create")
            if raises:
                raise OSError("no room")

        def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
            return "ok"

        def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
            stages.append("calc_reward")
            return 0.0

        def release(self, instance_id: str, **kwargs: Any) -> None:
            stages.append("release")

    task = asyncio.create_task(episode(Slow(), "call").run())
    await asyncio.to_thread(running.wait, 30)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, leave.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stages == ["create", *([] if raises else ["calc_reward"]), "release"]


@pytest.mark.parametrize("stage", ["create", "calc_reward"])
async def test_a_stage_that_ends_as_its_episode_is_cancelled_counts(stage: str) -> None:
    class Cancels(Staged):
        async def _note(self, name: str) -> None:
            await super()._note(name)
            if name == stage:
                running[0].cancel()  # The stage returns before its caller hears of it.

    tool, running = Cancels(), []
    running.append(asyncio.create_task(episode(tool, "call", "done").run()))
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    assert tool.stages == (["create", "calc_reward", "release"] if stage == "create" else ONCE)


# Stages that don't let themselves be stopped.


def box_of(tool: Tool) -> ToolBox:
    policy = PolicyOptions(session_timeout=SESSION_SECONDS)
    return ToolBox([ToolEntry("t", as_toolset(tool, None, make_build_context()), policy=policy)])


async def live(tool: Tool, *, rewarded: bool = True) -> None:
    async with box_of(tool).open(make_task(), make_episode_context()) as session:
        await session.answer([ToolCall("stage", {})])
        if rewarded:
            await session.rewards()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("slow", "rewarded", "fails", "stages", "seconds"),
    [
        # A stage that goes on is waited for before the release.
        ("create", True, True, ["create", "release"], SESSION_SECONDS + CLEANUP_SECONDS + RELEASE_SECONDS),
        ("calc_reward", True, True, ONCE, SESSION_SECONDS + CLEANUP_SECONDS + RELEASE_SECONDS),
        ("calc_reward", False, False, ONCE, RELEASE_SECONDS + CLEANUP_SECONDS),
        ("release", True, False, ONCE, RELEASE_SECONDS + CLEANUP_SECONDS),
    ],
)
async def test_a_stage_that_swallows_its_cancellation_ends_in_time(
    slow: str, rewarded: bool, fails: bool, stages: list[str], seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Staged(hangs=slow, stubborn=True)
    with pytest.raises(ToolsetError, match="no answer within 20 s") if fails else nullcontext():
        await live(tool, rewarded=rewarded)
    assert asyncio.get_running_loop().time() == pytest.approx(seconds, abs=1)
    assert tool.stages == stages
    assert f"tool 'stage': {slow} was cancelled and didn't end within 5 s; it is left to itself" in caplog.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("stage", ["create", "execute"])
async def test_what_never_ends_does_not_keep_the_process(stage: str, caplog: pytest.LogCaptureFixture) -> None:
    class Immortal(Staged):
        async def _note(self, stage: str) -> None:
            while stage == self._hangs:
                with suppress(asyncio.CancelledError):  # The mistake under test.
                    await asyncio.sleep(3600)

    box = box_of(Immortal(hangs=stage))
    await box.start()
    with suppress(ToolsetError):
        async with box.open(make_task(), make_episode_context()) as session:
            (record,) = await session.answer([ToolCall("stage", {})])
            assert record.result.error == "timeout"
    await box.stop()
    assert "1 tool calls or stages never ended, although they were cancelled twice" in caplog.text


@pytest.mark.parametrize(("slow", "rewarded"), [("create", False), ("execute", False), ("calc_reward", True)])
def test_an_event_loop_that_shuts_down_leaves_nothing_unreleased(slow: str, rewarded: bool) -> None:
    tool = Staged(hangs=slow)

    async def main() -> None:
        tool.reached = asyncio.Event()
        task = asyncio.create_task(live(tool, rewarded=rewarded))
        await tool.reached.wait()
        assert not task.done()  # asyncio.run cancels it, and whatever it waits for.

    asyncio.run(main())
    assert tool.stages == (["create", "release"] if slow == "create" else ONCE)
