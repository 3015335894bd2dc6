"""What an engine is asked, and in which company, doesn't depend on how long anything takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import EngineError
from toolrl.parsing.items import tool_messages
from toolrl.protocols import Outcome
from toolrl.rollouts import lockstep
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.lockstep import Lockstep
from toolrl.rollouts.runner import Runner
from toolrl.tools.function import tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import as_toolset
from toolrl.types import Generation, Sampling
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_task

LIMITS = Limits(max_turn_tokens=50, max_episode_tokens=2000)


PARSER = FakeParser(lambda text: ["wait"] if text.startswith("call") else [])


class Company(ScriptedEngine):
    """Its answers take any time, and tell which requests it was handed together with which; it notes closings."""

    def __init__(self, script: Any, seed: int) -> None:
        super().__init__(script)
        self.chance = random.Random(seed)
        self.waves: list[list[str]] = []
        self.held = False
        self.going = 0
        self.events: list[str] = []

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        assert not self.going, "the wave before is over"
        self.held = True
        self.waves.append([])
        yield
        self.held = False
        self.events.append("wave " + " ".join(self.waves[-1]))

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        assert self.held, "all requests of a wave come while it is held"
        self.waves[-1].append(session)
        self.going += 1
        try:
            for _ in range(self.chance.randrange(5)):
                await asyncio.sleep(0)
            return await super().generate(prompt, sampling, session=session, media=media)
        finally:
            self.going -= 1

    async def close(self, session: str) -> None:
        assert not self.going, "sessions are closed between waves"
        self.events.append(f"close {session}")
        await super().close(session)


def rounds(seed: int, lengths: Mapping[str, int], concurrency: int, size: int, **fields: Any) -> Company:
    """One round whose episodes make as many calls as their task says, by tools that take any time."""
    chance = random.Random(seed)

    @tool
    async def wait() -> str:
        """Takes a while."""
        for _ in range(chance.choice((0, 1, 7, 30))):
            await asyncio.sleep(0)
        return "done"

    tasks = [make_task(f"({name})", id=name) for name in lengths]
    engine = Company(lambda prompt: "", seed)

    def script(prompt: str) -> str:
        name = next(name for name in lengths if f"({name})" in prompt)
        return "call" if prompt.count("<|assistant|>") <= lengths[name] else "no"

    engine._script = script
    toolset = as_toolset(wait, None, None)  # type: ignore[arg-type]
    env = Environment(
        "default",
        PARSER,
        FakeChatFormat(),
        ToolBox([ToolEntry("wait", toolset)]),
        max_turns=99,
        **fields,
    )
    runner = Runner(engine, {"default": env}, concurrency=concurrency, lockstep=True)
    asyncio.run(runner.run(tasks, size, LIMITS, round_id="train-1"))
    return engine


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    concurrency=st.integers(1, 8),
    size=st.integers(1, 3),
    seeds=st.tuples(st.integers(0, 99), st.integers(100, 199)),
)
def test_the_waves_are_the_same_however_long_things_take(
    calls: list[int], concurrency: int, size: int, seeds: tuple[int, int]
) -> None:
    lengths = {f"t{number}": count for number, count in enumerate(calls)}
    one, other = (rounds(seed, lengths, concurrency, size) for seed in seeds)
    assert one.events == other.events
    assert one.closed == other.closed
    assert sorted(one.closed) == sorted(f"train-1/{n}/t{n}#{i}" for n in range(len(calls)) for i in range(size))
    assert all(wave == sorted(wave) and len(wave) <= concurrency for wave in one.waves)
    asked = [session for wave in one.waves for session in wave]
    assert len(asked) == sum(count + 1 for count in calls) * size


class Loop:
    """A harness with the turn loop's own behaviour, and a helper."""

    async def play(self, task: Any, model: Any, episode: Any) -> Outcome:
        messages = [*task.messages]
        while (turn := await model.ask(messages)).items:
            messages += [turn.message, *tool_messages(await episode.tools.answer(turn.items))]
            await model.ask(task.messages, role="helper")
        return Outcome()


def test_the_waves_of_harnesses_are_the_same() -> None:
    lengths = {"t0": 2, "t1": 0, "t2": 3}
    one, other = (rounds(seed, lengths, 3, 2, harness=Loop()) for seed in (1, 101))
    assert one.events == other.events
    assert sum(map(len, one.waves)) == 2 * sum(2 * count + 1 for count in lengths.values())


class One(ScriptedEngine):
    """Fails where it is told to."""

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        yield

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        if session == "bad":
            raise EngineError("no")
        return await super().generate(prompt, sampling, session=session, media=media)


async def test_a_request_that_fails_fails_alone() -> None:
    steps = Lockstep(One(["x"]), lambda: 3)  # type: ignore[arg-type]
    jobs = [steps.generate([65], Sampling(3), session=name) for name in ("good", "bad", "other")]
    good, bad, other = list(await asyncio.gather(*jobs, return_exceptions=True))
    assert isinstance(bad, EngineError)
    assert isinstance(good, Generation)
    assert isinstance(other, Generation)


async def test_episodes_that_wait_for_each_other_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lockstep, "_PATIENCE", 0.01)
    steps = Lockstep(Company(["x"], 0), lambda: 2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(steps.generate([65], Sampling(3), session="a#0"), 0.1)
    assert caplog.text.count("1 of 2 episodes have waited 0.01 s") == 1


async def test_an_episode_that_asks_twice_stands_for_no_other() -> None:
    engine = Company(["x"], 0)
    steps = Lockstep(engine, lambda: 2)
    jobs = [asyncio.create_task(steps.generate([65], Sampling(3), session=name)) for name in ("g#0", "g#0/1", "g#1")]
    third = jobs.pop()
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    assert not engine.waves
    await asyncio.gather(*jobs, steps.generate([65], Sampling(3), session="g#1"))
    assert engine.waves == [["g#0", "g#0/1", "g#1"]]
    await steps.end()


async def test_an_episode_that_is_cancelled_is_not_waited_for() -> None:
    expected = 2
    steps = Lockstep(One(["x"]), lambda: expected)  # type: ignore[arg-type]
    first = asyncio.create_task(steps.generate([65], Sampling(3), session="first"))
    second = asyncio.create_task(steps.generate([65], Sampling(3), session="second"))
    third = asyncio.create_task(asyncio.sleep(0))
    await third
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    if not first.done():
        expected = 1
        steps.start_if_complete()
    assert isinstance(await first, Generation)
    await steps.end()


async def test_what_breaks_the_engine_reaches_everybody_who_waits() -> None:
    class Broken(One):
        @asynccontextmanager
        async def hold(self) -> AsyncIterator[None]:
            raise EngineError("the engine has failed earlier")
            yield

    steps = Lockstep(Broken(["x"]), lambda: 2)  # type: ignore[arg-type]
    jobs = [steps.generate([65], Sampling(3), session=name) for name in "ab"]
    found = await asyncio.gather(*jobs, return_exceptions=True)
    await steps.end()
    assert [str(error) for error in list(found)] == ["the engine has failed earlier"] * 2
