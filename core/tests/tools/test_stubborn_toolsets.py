"""Toolsets and stages that misbehave or don't let themselves be stopped: nothing hangs, and each stage runs once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools import Tool, as_toolset
from toolrl.tools.cancellation import CLEANUP_SECONDS
from toolrl.tools.lifecycle import RELEASE_SECONDS
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_testing.clock import run_in_virtual_time
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task

SESSION_SECONDS = 20.0
ONCE = ["create", "execute", "calc_reward", "release"]


class Staged(Tool):
    """One of its stages waits for an hour; a stubborn one begins anew when it is cancelled the first time."""

    spec = ToolSpec("stage", "")

    def __init__(self, slow: str, *, stubborn: bool) -> None:
        super().__init__()
        self.stages: list[str] = []
        self.reached = asyncio.Event()
        self._slow = slow
        self._stubborn = stubborn

    async def _note(self, stage: str) -> None:
        self.stages.append(stage)
        if stage != self._slow:
            return
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
        return 1.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await self._note("release")


def box_of(tool: Tool) -> ToolBox:
    policy = PolicyOptions(session_timeout=SESSION_SECONDS)
    return ToolBox([ToolEntry("t", as_toolset(tool, None, make_build_context()), policy=policy)])


async def live(tool: Tool, *, rewarded: bool = True) -> None:
    async with box_of(tool).open(make_task(), make_episode_context()) as session:
        await session.answer([ToolCall("stage", {})])
        if rewarded:
            await session.rewards()


@pytest.mark.parametrize(
    ("slow", "rewarded", "fails", "stages", "seconds"),
    [
        # Somebody who goes on with it is waited for before the release.
        ("create", True, True, ["create", "release"], SESSION_SECONDS + CLEANUP_SECONDS + RELEASE_SECONDS),
        ("calc_reward", True, True, ONCE, SESSION_SECONDS + CLEANUP_SECONDS + RELEASE_SECONDS),
        ("calc_reward", False, False, ONCE, RELEASE_SECONDS + CLEANUP_SECONDS),
        ("release", True, False, ONCE, RELEASE_SECONDS + CLEANUP_SECONDS),
    ],
)
def test_a_stage_that_swallows_its_cancellation_holds_nobody_up_for_ever(
    slow: str, rewarded: bool, fails: bool, stages: list[str], seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Staged(slow, stubborn=True)

    async def main() -> float:
        with pytest.raises(ToolsetError, match="no answer within 20 s") if fails else nullcontext():
            await live(tool, rewarded=rewarded)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(seconds, abs=1)
    assert tool.stages == stages
    assert f"tool 'stage': {slow} was cancelled and didn't end within 5 s; it is left to itself" in caplog.text


@pytest.mark.parametrize("stage", ["create", "execute"])
def test_what_never_ends_does_not_keep_the_process(stage: str, caplog: pytest.LogCaptureFixture) -> None:
    class Immortal(Staged):
        async def _note(self, stage: str) -> None:
            while stage == self._slow:
                with suppress(asyncio.CancelledError):  # The mistake under test.
                    await asyncio.sleep(3600)

    box = box_of(Immortal(stage, stubborn=True))

    async def main() -> None:
        await box.start()
        with suppress(ToolsetError):
            async with box.open(make_task(), make_episode_context()) as session:
                (record,) = await session.answer([ToolCall("stage", {})])
                assert record.result.error == "timeout"
        await box.stop()

    run_in_virtual_time(main())  # Ends.
    assert "1 tool calls or stages never ended, although they were cancelled twice" in caplog.text


def test_a_toolset_that_does_not_stop_keeps_neither_the_run_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[str] = []

    class Desk:
        def __init__(self, name: str, seconds: float) -> None:
            self._name, self._seconds = name, seconds

        async def start(self) -> None:
            pass

        def open(self, task: Task, episode: EpisodeContext) -> Any:
            raise NotImplementedError("no episode here")

        async def stop(self) -> None:
            await asyncio.sleep(self._seconds)
            stopped.append(self._name)

    box = ToolBox([ToolEntry("first", Desk("first", 0.0)), ToolEntry("second", Desk("second", 1e6))])

    async def main() -> None:
        await box.start()
        await box.stop()

    run_in_virtual_time(main())
    assert stopped == ["first"]
    assert "Desk didn't stop within 60 s; it is left as it is" in caplog.text


@pytest.mark.parametrize(("slow", "rewarded"), [("create", False), ("execute", False), ("calc_reward", True)])
def test_an_event_loop_that_shuts_down_leaves_nothing_unreleased(slow: str, rewarded: bool) -> None:
    tool = Staged(slow, stubborn=False)

    async def main() -> None:
        tool.reached = asyncio.Event()
        task = asyncio.create_task(live(tool, rewarded=rewarded))
        await tool.reached.wait()
        assert not task.done()  # asyncio.run cancels it, and whatever it waits for.

    asyncio.run(main())
    assert tool.stages == (["create", "release"] if slow == "create" else ONCE)


@pytest.mark.parametrize("error", [ValueError("no list"), SystemExit(3)])
def test_a_session_that_opens_and_cannot_say_its_tools_is_closed_at_once(error: BaseException) -> None:
    closed: list[bool] = []

    class Mute:
        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        @asynccontextmanager
        async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
            try:
                yield self
            finally:
                closed.append(True)

        def specs(self) -> list[ToolSpec]:
            raise error

        async def call(self, call: ToolCall) -> ToolResult:
            return ToolResult("")

        async def reward(self) -> None: ...

    async def main() -> None:
        box = ToolBox([ToolEntry("mute", Mute())])
        with pytest.raises(ToolsetError, match=rf"mute: opening a session failed: .*{type(error).__name__}"):
            async with box.open(make_task(), make_episode_context()):
                pass
        assert closed == [True]

    asyncio.run(main())


class Odd:
    """A toolset of which one method isn't what it has to be."""

    def __init__(self, **odd: Any) -> None:
        self.closed = 0
        for name, value in odd.items():
            setattr(self, name, value)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
        try:
            yield self
        finally:
            self.closed += 1

    def specs(self) -> list[ToolSpec]:
        return [ToolSpec("odd", "")]

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult("")

    async def reward(self) -> float | None:
        return None


def refuse(*_: Any) -> Any:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"open": refuse}, "opening a session failed: KeyError"),
        ({"open": lambda task, episode: None}, "opening a session failed: AttributeError: .*__aenter__"),
        ({"specs": refuse}, r"opening a session failed: specs\(\) or traits\(\): KeyError"),
        ({"specs": lambda: ["odd"]}, r"opening a session failed: specs\(\) or traits\(\): AttributeError"),
        ({"traits": lambda name: {"pure": True}}, r"traits\('odd'\) gave dict, expected toolrl.tools.ToolTraits"),
        ({"traits": {"odd": True}}, r"specs\(\) or traits\(\): TypeError: 'dict' object is not callable"),
        ({"reward": refuse}, "reward failed: KeyError"),
        ({"reward": lambda: 1.0}, "reward failed: TypeError"),
        ({"reward": None}, "reward failed: TypeError"),
        ({"opening": refuse}, "opening messages failed: KeyError"),
    ],
)
def test_a_toolset_that_is_none_fails_with_its_name_and_is_closed(odd: dict[str, Any], message: str) -> None:
    toolset: Any = Odd(**odd)

    async def main() -> None:
        with pytest.raises(ToolsetError, match=rf"odd set: .*{message}"):
            async with ToolBox([ToolEntry("odd set", toolset)]).open(make_task(), make_episode_context()) as session:
                await session.opening()
                await session.answer([ToolCall("odd", {})])
                await session.rewards()

    asyncio.run(main())
    assert toolset.closed == (0 if "open" in odd else 1)


def test_a_session_that_cannot_say_what_a_name_means_loses_no_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str | None]:
        box = ToolBox([ToolEntry("odd set", Odd(resolve=refuse))])
        async with box.open(make_task(), make_episode_context()) as session:
            return [record.result.error for record in await session.answer([ToolCall("o", {}), ToolCall("odd", {})])]

    assert asyncio.run(main()) == ["unknown_tool", None]
    assert "Odd: resolve('o') raised" in caplog.text
