"""create, calc_reward and release once each, in that order, however an episode ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from toolrl.rollout.environment import Environment, Limits, NamedReward
from toolrl.rollout.episode import EpisodePlan, EpisodeRun
from toolrl.tools import Tool, ToolError, as_toolset
from toolrl.tools import lifecycle as lifecycle_module
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Message, ParsedTurn, Score, ToolCall, ToolSpec
from toolrl_testing.fakes import FakeChatFormat, FixedReward, ScriptedEngine, make_build_context, make_task

ONCE = ["create", "execute", "calc_reward", "release"]


class Staged(Tool):
    """Notes its stages; one of them may raise, or wait until it is cancelled."""

    spec = ToolSpec("stage", "")

    def __init__(self, raises: str = "", hangs: str = "", *, error: BaseException | None = None) -> None:
        super().__init__()
        self.stages: list[str] = []
        self.reached = asyncio.Event()
        self._raises = raises
        self._hangs = hangs
        self._error = error if error is not None else OSError("gone")

    async def _note(self, stage: str) -> None:
        self.stages.append(stage)
        if stage == self._raises:
            raise self._error
        if stage == self._hangs:
            self.reached.set()
            await asyncio.sleep(600)

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


class CallOnce:
    """A parser that reads one call from every turn that says so."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **context: Any) -> ParsedTurn:
        if text == "broken":
            raise ValueError("a parser that raises")
        items = (ToolCall("stage", {}),) if text == "call" else ()
        return ParsedTurn(items, text, status="calls" if items else "final")

    def render_results(self, records: Any) -> list[Message]:
        return [Message("tool", record.result.text) for record in records]


class RaisingReward:
    async def score(self, episode: Episode) -> Score:
        raise ValueError("no answer")


def episode(tool: Tool, *texts: str, reward: Any = None, engine: ScriptedEngine | None = None) -> EpisodeRun:
    box = ToolBox([ToolEntry("stage", as_toolset(tool, None, make_build_context()))])
    environment = Environment(
        "default", CallOnce(), FakeChatFormat(), box, [NamedReward("r", reward or FixedReward())], max_turns=5
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
    ],
)
def test_however_an_episode_ends(tool: Staged, texts: list[str], fault: str | None, stages: list[str]) -> None:
    finished = asyncio.run(episode(tool, *texts).run())
    assert (finished.failure.fault if finished.failure else None) == fault
    assert tool.stages == stages
    given = [entry.value for entry in finished.rewards if entry.source == "tool:stage"]
    assert given == ([2.0] if fault is None else [])


def test_also_where_the_reward_function_raises() -> None:
    tool = Staged()
    finished = asyncio.run(episode(tool, "call", "done", reward=RaisingReward()).run())
    assert finished.failure is not None
    assert finished.failure.fault == "reward"
    assert tool.stages == ONCE


@pytest.mark.parametrize("stage", ["create", "execute", "calc_reward"])
def test_also_where_the_episode_is_cancelled(stage: str) -> None:
    async def main() -> list[str]:
        tool = Staged(hangs=stage)
        task = asyncio.create_task(episode(tool, "call", "done").run())
        await tool.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return tool.stages

    stages = asyncio.run(main())
    # Where create was cancelled nobody knows whether there is an instance to reward.
    assert stages == (["create", "release"] if stage == "create" else ONCE)


def test_a_reward_that_hangs_at_the_end_holds_up_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_module, "RELEASE_SECONDS", 0.02)
    tool = Staged(hangs="calc_reward")
    finished = asyncio.run(episode(tool, "call").run())  # Fails in the engine, so that nobody asks for the reward.
    assert finished.failure is not None
    assert tool.stages == ONCE


@pytest.mark.parametrize("raises", [False, True])
def test_a_create_that_goes_on_in_its_thread_made_an_instance_unless_it_raised(raises: bool) -> None:
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

    async def main() -> None:
        task = asyncio.create_task(episode(Slow(), "call").run())
        await asyncio.to_thread(running.wait, 30)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, leave.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stages == ["create", *([] if raises else ["calc_reward"]), "release"]


@pytest.mark.parametrize("stage", ["create", "calc_reward"])
def test_a_stage_that_ends_as_its_episode_is_cancelled_counts(stage: str) -> None:
    class Cancels(Staged):
        async def _note(self, name: str) -> None:
            await super()._note(name)
            if name == stage:
                running[0].cancel()  # The stage returns before its caller hears of it.

    tool, running = Cancels(), []

    async def main() -> None:
        running.append(asyncio.create_task(episode(tool, "call", "done").run()))
        with pytest.raises(asyncio.CancelledError):
            await running[0]

    asyncio.run(main())
    assert tool.stages == (["create", "calc_reward", "release"] if stage == "create" else ONCE)
