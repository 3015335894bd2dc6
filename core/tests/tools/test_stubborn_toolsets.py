"""Toolsets that misbehave: nothing hangs, and the error names the toolset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import make_episode_context, make_task


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


def leave(*_: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"open": refuse}, "opening a session failed: KeyError"),
        ({"open": lambda task, episode: None}, "opening a session failed: AttributeError: .*__aenter__"),
        ({"specs": refuse}, r"opening a session: specs\(\) or traits\(\) failed: KeyError"),
        ({"specs": leave}, r"opening a session: specs\(\) or traits\(\) failed: SystemExit"),
        ({"specs": lambda: ["odd"]}, r"opening a session: specs\(\) or traits\(\) failed: AttributeError"),
        ({"reward": refuse}, "reward failed: KeyError"),
        ({"reward": lambda: 1.0}, "reward failed: TypeError"),
        ({"reward": None}, "reward failed: TypeError"),
        ({"opening": refuse}, "opening messages failed: KeyError"),
    ],
)
async def test_a_toolset_that_is_none_fails_with_its_name_and_is_closed(odd: dict[str, Any], message: str) -> None:
    toolset: Any = Odd(**odd)
    with pytest.raises(ToolsetError, match=rf"odd set: .*{message}"):
        async with ToolBox([ToolEntry("odd set", toolset)]).open(make_task(), make_episode_context()) as session:
            await session.opening()
            await session.answer([ToolCall("odd", {})])
            await session.rewards()
    assert toolset.closed == (0 if "open" in odd else 1)


async def test_a_session_that_cannot_say_what_a_name_means_loses_no_call(caplog: pytest.LogCaptureFixture) -> None:
    box = ToolBox([ToolEntry("odd set", Odd(resolve=refuse))])
    async with box.open(make_task(), make_episode_context()) as session:
        assert [record.result.error for record in await session.answer([ToolCall("o", {}), ToolCall("odd", {})])] == [
            "unknown_tool",
            None,
        ]
    assert "Odd: resolve('o') raised" in caplog.text


@pytest.mark.virtual_time
async def test_a_toolset_that_does_not_stop_keeps_neither_the_run_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    await box.start()
    await box.stop()
    assert stopped == ["first"]
    assert "Desk didn't stop within 60 s; it is left as it is" in caplog.text
