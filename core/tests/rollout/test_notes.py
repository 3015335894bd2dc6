"""What tools hand on: `EpisodeContext.notes` becomes `Episode.notes`, for rewards, observers and the record."""

from __future__ import annotations

import asyncio
import enum
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.rollouts.notes import DEEPEST, plain_notes
from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, Task, ToolCall, ToolResult, ToolSpec
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_episode, make_task

SECRET = "s3cret-key"


class Notes:
    """A toolset whose one tool, and whose end, do something with the notes."""

    def __init__(self, on_call: Callable[[dict[str, Any]], None], on_close: Callable[[dict[str, Any]], None]) -> None:
        self.on_call, self.on_close = on_call, on_close

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
        yield _Session(self, episode)
        self.on_close(episode.notes)


class _Session:
    def __init__(self, toolset: Notes, episode: EpisodeContext) -> None:
        self.toolset, self.episode = toolset, episode

    def specs(self) -> list[ToolSpec]:
        return [ToolSpec("echo", "Notes.")]

    async def call(self, call: ToolCall) -> ToolResult:
        self.toolset.on_call(self.episode.notes)
        return ToolResult("ok")

    async def reward(self) -> float | None:
        return None


class Reads:
    """A reward that reads the notes, keeps them, and may raise."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.seen: Any = None

    async def score(self, episode: Episode) -> Score:
        self.seen = episode.notes
        if self.fails:
            raise RuntimeError("no score")
        return Score(float(episode.notes.get("found", 0)))


def calls(text: str) -> list[str]:
    """A turn `call NAME` calls the tool NAME; every other one is final."""
    if text == "broken":
        raise ValueError("parser is broken")
    return [text[5:]] if text.startswith("call ") else []


def nothing(notes: dict[str, Any]) -> None:
    """Leaves them as they are."""


def play(
    toolset: Any,
    reward: Reads,
    *,
    last: str = "done",
    rename: dict[str, str] | None = None,
    hide: Callable[[str], str] = str,
) -> Episode:
    name = (rename or {}).get("echo", "echo")
    script = [f"call {name}", last]
    box = ToolBox([ToolEntry("echo", toolset, rename=rename or {})])
    env = Environment("default", FakeParser(calls), FakeChatFormat(), box, (NamedReward("reads", reward),))
    limits = Limits(max_turn_tokens=200, max_episode_tokens=2000)

    async def main() -> Episode:
        await box.start()
        try:
            plan = EpisodePlan(make_task(), "group", 0, seed=1)
            return await EpisodeRun(plan, env, ScriptedEngine(script), limits, hide=hide).run()
        finally:
            await box.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("rename", [None, {"echo": "other"}])
def test_notes_reach_the_reward_and_the_episode(rename: dict[str, str] | None) -> None:
    reward = Reads()
    toolset = Notes(lambda notes: notes.update(found=2, at=[1, "x"]), lambda notes: notes.update(closed=True))
    episode = play(toolset, reward, rename=rename)
    assert episode.failure is None
    assert episode.reward == 2.0
    assert episode.notes == reward.seen == {"found": 2, "at": [1, "x"], "closed": True}


def test_what_a_tool_changes_later_changes_nothing() -> None:
    held: dict[str, Any] = {}

    def note(notes: dict[str, Any]) -> None:
        notes["list"] = held.setdefault("list", [1])
        held["notes"] = notes

    episode = play(Notes(note, nothing), Reads())
    held["list"].append(2)
    held["notes"]["more"] = True
    assert episode.notes == {"list": [1]}


def test_secrets_are_taken_out() -> None:
    def note(notes: dict[str, Any]) -> None:
        notes.update({"url": [f"http://x?key={SECRET}"], f"of {SECRET}": 1})

    episode = play(Notes(note, nothing), Reads(), hide=lambda text: text.replace(SECRET, "***"))
    assert episode.notes == {"url": ["http://x?key=***"], "of ***": 1}


def test_notes_are_kept_in_the_record() -> None:
    notes = {"turns": [0.5, None, True], "by": {"tool": {"n": 1}}, "odd": float("inf")}
    episode = make_episode("x", notes=notes)
    stored = json.loads(json.dumps(episode_to_json(episode), allow_nan=False))
    assert episode_from_json(stored).notes == notes
    del stored["notes"]  # A record from before there were any.
    assert episode_from_json(stored).notes == {}


class _Scalar:
    shape = ()

    def tolist(self) -> float:
        return 0.25


class _Large:
    shape = (100, 100)

    def tolist(self) -> list[float]:
        raise AssertionError("too large to be asked")


class _Kind(enum.IntEnum):
    ONE = 1


def test_what_can_be_noted() -> None:
    given = {"tuple": (1, (2,)), "scalar": _Scalar(), "enum": _Kind.ONE, "nan": math.nan}
    kept = plain_notes(given)
    assert json.dumps(kept) == '{"tuple": [1, [2]], "scalar": 0.25, "enum": 1, "nan": NaN}'
    assert type(kept["enum"]) is int


_circle: list[Any] = []
_circle.append(_circle)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1: 2}, "the key 1"),
        ([b"x"], "[0] is bytes"),
        (_Large(), "is _Large"),
        (_circle, f"more than {DEEPEST} levels"),
    ],
)
def test_what_can_not_be_noted(value: Any, named: str) -> None:
    with pytest.raises(ToolsetError) as caught:
        plain_notes({"x": value})
    assert named in str(caught.value)
    assert "['x']" in str(caught.value)
