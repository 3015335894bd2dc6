"""Rewards that block, that see a whole group, that have to be started: nothing they do loses an episode."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from toolrl.errors import DataError, RewardError, RunStoppedError
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.rollouts.scoring import score_of, scored_together
from toolrl.tools import cancellation, toolset
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Group, Score
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    FixedReward,
    RecordingToolset,
    ScriptedEngine,
    make_episode,
    make_task,
)

LIMITS = Limits(max_turn_tokens=50, max_episode_tokens=500)


def rollout(*rewards: Any, tasks: int = 2, size: int = 3, **options: Any) -> tuple[list[Group], list[Episode]]:
    """The groups, and the episodes in the order in which they were told of."""
    named = [NamedReward(f"r{number}", reward, 2.0) for number, reward in enumerate(rewards)]
    environment = Environment("default", FakeParser(), FakeChatFormat(), ToolBox([]), rewards=named)
    told: list[Episode] = []
    options = {"max_error_rate": 1.0, **options}
    runner = Runner(ScriptedEngine(["x"]), {"default": environment}, on_episode=told.append, **options)
    asked = [make_task(id=f"t{number}") for number in range(tasks)]
    return asyncio.run(runner.run(asked, size, LIMITS, round_id="train-1")), told


# Rewards that are no coroutine functions.


class Blocking:
    """Waits for another episode's event, as only a thread can."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def score(self, episode: Episode) -> Score:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.threads.add(threading.get_ident())
        threading.Event().wait(0.01)
        with self._lock:
            self.at_once -= 1
        return Score(float(episode.index))


def test_a_plain_function_runs_in_a_thread_one_call_at_a_time() -> None:
    reward = Blocking()
    groups, _ = rollout(reward)
    assert [[episode.reward for episode in group.episodes] for group in groups] == [[0.0, 2.0, 4.0]] * 2
    assert threading.get_ident() not in reward.threads
    assert reward.most_at_once == 1


async def test_the_event_loop_goes_on_while_a_plain_function_runs() -> None:
    waits = threading.Event()

    class Waiting:
        def score(self, episode: Episode) -> Score:
            assert waits.wait(60)
            return Score(1.0)

    asked = asyncio.ensure_future(score_of(NamedReward("r", Waiting()), make_episode("x")))
    await asyncio.sleep(0)
    waits.set()  # what would never happen if the loop stood still
    score: Score = await asked
    assert score == Score(1.0)


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), StopIteration(), DataError("no truth")])
def test_what_a_plain_function_raises_fails_its_episode(error: BaseException) -> None:
    class Raises:
        def score(self, episode: Episode) -> Score:
            if episode.index == 1:
                raise error
            return Score(1.0)

    groups, told = rollout(Raises(), tasks=1)
    failures = [episode.failure for episode in groups[0].episodes]
    assert [failure is None for failure in failures] == [True, False, True]
    assert failures[1] is not None
    assert failures[1].fault == "reward"
    assert "r0" in failures[1].message
    assert len(told) == 3


# Rewards that see a group.


class Ranked:
    """1 for the last of the group, 0 for the others."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    async def score_group(self, episodes: Sequence[Episode]) -> list[Score | Exception]:
        self.groups.append([episode.id for episode in episodes])
        return [Score(float(it is episodes[-1]), metrics={"correct": float(it is episodes[-1])}) for it in episodes]


def test_a_group_is_scored_in_one_call() -> None:
    reward = Ranked()
    # A single place: a group that held places while it waits for its last episode would wait for ever.
    groups, told = rollout(reward, concurrency=1)
    assert [[episode.reward for episode in group.episodes] for group in groups] == [[0.0, 0.0, 2.0]] * 2
    assert reward.groups == [[episode.id for episode in group.episodes] for group in groups]
    assert sorted(told, key=lambda it: it.id) == [episode for group in groups for episode in group.episodes]
    assert all(episode.rewards[-1].source == "reward:r0" for episode in told)


def test_accuracy_is_of_the_first_reward_that_judges_whenever_it_is_asked() -> None:
    class Judges:
        async def score(self, episode: Episode) -> Score:
            return Score(0.0, metrics={"correct": 0.5})

    groups, _ = rollout(Ranked(), Judges(), tasks=1)
    assert [episode.correct for episode in groups[0].episodes] == [0.0, 0.0, 1.0]
    groups, _ = rollout(Judges(), Ranked(), tasks=1)
    assert [episode.correct for episode in groups[0].episodes] == [0.5] * 3
    assert groups[0].episodes[2].metrics["r1/correct"] == 1.0


def test_what_a_group_score_raises_fails_all_of_it_and_loses_none() -> None:
    class Broken:
        async def score_group(self, episodes: Sequence[Episode]) -> list[Score]:
            if episodes[0].task.id == "t0":
                raise ConnectionError("no judge")
            return [Score(1.0)] * len(episodes)

    groups, told = rollout(FixedReward(0.5), Broken())
    failures = [episode.failure for episode in groups[0].episodes]
    assert all(it is not None and it.fault == "reward" and "no judge" in it.message for it in failures)
    assert all(episode.stop_reason == "error" and episode.reward == 1.0 for episode in groups[0].episodes)
    assert [episode.reward for episode in groups[1].episodes] == [3.0] * 3
    assert len(told) == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ValueError("unread"), "unread"),
        (DataError("no truth"), "no truth"),
        (Score(float("nan")), "nan"),
        (Score(1.0, per_turn={9: 1.0}), "turn 9"),
        (None, "expected a Score"),
    ],
)
def test_one_score_that_is_none_fails_that_episode_alone(wrong: Any, said: str) -> None:
    class Partly:
        async def score_group(self, episodes: Sequence[Episode]) -> list[Any]:
            return [Score(1.0), wrong, Score(1.0)]

    groups, _ = rollout(Partly(), tasks=1)
    first, second, third = groups[0].episodes
    assert (first.failure, third.failure) == (None, None)
    assert second.failure is not None
    assert said in second.failure.message
    assert "r0" in second.failure.message


class Stubborn:
    """Swallows its cancellation."""

    def __init__(self, groups: bool) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        setattr(self, "score_group" if groups else "score", self.wait)

    async def wait(self, _: Any) -> Score:
        self.begun.set()
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue  # The mistake under test.
        return Score(1.0)


@pytest.mark.parametrize("groups", [False, True])
async def test_a_reward_that_swallows_its_cancellation_doesnt_hold_up_the_end(
    groups: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellation, "CLEANUP_SECONDS", 0.01)
    reward = Stubborn(groups)
    named, episode = NamedReward("waits", reward), make_episode("x")
    work = scored_together([episode], [named]) if groups else score_of(named, episode)
    asked = asyncio.create_task(work)  # type: ignore[arg-type]
    await reward.begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await asked
    reward.free.set()
    assert "'waits' was cancelled and didn't end" in caplog.text


def test_secrets_are_hidden_in_a_groups_failure() -> None:
    class Tells:
        async def score_group(self, episodes: Sequence[Episode]) -> list[Score]:
            raise ValueError("key hunter2")

    def hide(text: str) -> str:
        return text.replace("hunter2", "***")

    episodes = asyncio.run(scored_together([make_episode("x")], [NamedReward("r", Tells())], hide))
    assert episodes[0].failure is not None
    assert "hunter2" not in episodes[0].failure.message + episodes[0].failure.traceback


# Rewards that are started.


class Started(FixedReward):
    def __init__(self, log: list[str], name: str, breaks: str = "") -> None:
        super().__init__()
        self._log, self._name, self._breaks = log, name, breaks

    async def start(self) -> None:
        self._note("start")

    async def stop(self) -> None:
        self._note("stop")

    def _note(self, what: str) -> None:
        self._log.append(f"{what} {self._name}")
        if self._breaks == what:
            raise RuntimeError(f"{what} of {self._name}")


def started(*rewards: Any) -> tuple[Environment, RecordingToolset]:
    tools = RecordingToolset(lambda call: "ok")
    named = [NamedReward(f"r{number}", reward) for number, reward in enumerate(rewards)]
    return Environment("default", FakeParser(), FakeChatFormat(), ToolBox([ToolEntry("t", tools)]), named), tools


def test_rewards_start_after_tools_and_stop_before_them() -> None:
    log: list[str] = []
    environment, tools = started(Started(log, "a"), FixedReward(), Started(log, "b"))
    asyncio.run(environment.start())
    assert log == ["start a", "start b"]
    asyncio.run(environment.stop())
    assert log[2:] == ["stop b", "stop a"]
    assert [what for what, _ in tools.events] == ["start", "stop"]


async def test_all_are_stopped_whatever_one_does() -> None:
    log: list[str] = []
    environment, tools = started(Started(log, "a"), Started(log, "b", breaks="stop"))
    with pytest.raises(RuntimeError, match="stop of b"):
        await environment.start()
        await environment.stop()
    assert log == ["start a", "start b", "stop b", "stop a"]
    assert [what for what, _ in tools.events] == ["start", "stop"]


class Hangs:
    """Never answers, as a coroutine."""

    async def score(self, episode: Episode) -> Score:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_coroutine_that_takes_too_long_is_stopped_and_fails_its_episode() -> None:
    with pytest.raises(RewardError, match=r"'slow' gave no score within 0.05 s"):
        asyncio.run(score_of(NamedReward("slow", Hangs(), timeout=0.05), make_episode("x")))


async def test_a_reward_that_does_not_stop_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(toolset, "STOP_SECONDS", 0.05)

    class Lingers(FixedReward):
        async def start(self) -> None: ...

        async def stop(self) -> None:
            await asyncio.Event().wait()

    log: list[str] = []
    environment, tools = started(Started(log, "a"), Lingers())
    await environment.start()
    await asyncio.wait_for(environment.stop(), 60)
    assert "Lingers didn't stop within 0.05 s" in caplog.text
    assert log == ["start a", "stop a"]
    assert [what for what, _ in tools.events] == ["start", "stop"]


async def test_a_plain_function_that_takes_too_long_fails_its_episode_and_never_runs_beside_itself() -> None:
    go_on, calls = threading.Event(), []

    class Blocks:
        def score(self, episode: Episode) -> Score:
            calls.append(episode)
            go_on.wait(60)
            return Score(1.0)

    named = NamedReward("slow", Blocks(), timeout=0.05)
    for _ in range(3):
        with pytest.raises(RewardError, match=r"'slow' gave no score within 0.05 s"):
            await score_of(named, make_episode("x"))
    assert len(calls) == 1
    go_on.set()
    named.jobs[0].when_ended((ended := asyncio.Event()).set)
    await asyncio.wait_for(ended.wait(), 60)
    assert (await score_of(named, make_episode("x"))).value == 1.0


# A reward that raises is told of at once, and once.


class Raises:
    """Raises in every second episode, in a function that it calls."""

    async def score(self, episode: Episode) -> Score:
        return Score(self.divided(episode.index % 2))

    def divided(self, by: int) -> float:
        return 1 / by


class RaisesInAThread(Raises):
    def score(self, episode: Episode) -> Score:  # type: ignore[override]
        return Score(self.divided(episode.index % 2))


class RaisesOfAGroup(Raises):
    async def score_group(self, episodes: Sequence[Episode]) -> list[Score]:
        return [Score(self.divided(0))] * len(episodes)


LINE = f"test_scoring.py:{inspect.getsourcelines(Raises.divided)[1] + 1}"


@pytest.mark.parametrize("kind", [Raises, RaisesInAThread, RaisesOfAGroup])
def test_a_reward_that_raises_is_logged_once_with_its_traceback(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    groups, _ = rollout(FixedReward(1.0), kind())
    assert {episode.failure.component for group in groups for episode in group.episodes if episode.failure} == {"r1"}
    (record,) = [record for record in caplog.records if record.name == "toolrl.rollouts.source"]
    text = record.getMessage()
    assert "reward (r1): RewardError: reward 'r1' raised ZeroDivisionError" in text
    assert LINE in text
    assert "Traceback" in text


@pytest.mark.parametrize("kind", [Raises, RaisesInAThread, RaisesOfAGroup])
def test_too_many_failures_of_a_reward_end_the_run_with_its_file_and_line(kind: Any) -> None:
    with pytest.raises(RunStoppedError, match="max_error_rate") as caught:
        rollout(kind(), max_error_rate=0.2)
    assert "(r0)" in str(caught.value)
    assert LINE in str(caught.value)


def test_a_secret_in_a_rewards_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Tells:
        async def score(self, episode: Episode) -> Score:
            raise ValueError("key s3cret")

    rollout(Tells(), hide=lambda text: text.replace("s3cret", "${KEY}"))
    assert "${KEY}" in caplog.text
    assert "s3cret" not in caplog.text
