"""Evaluation: which tasks, how often, at which temperature, and that it trains nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.config.model import EvaluationConfig
from toolrl.loop.evaluate import Evaluator
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, Task
from toolrl_testing.fakes import FakeChatFormat, FakeParser, RecordingToolset, ScriptedEngine, make_task

CHAT = FakeChatFormat()


class FirstOfEach:
    """The first episode of a task is right, the others are wrong."""

    async def score(self, episode: Episode) -> Score:
        right = float(episode.index == 0)
        return Score(right, metrics={"correct": right})


class Watched(RecordingToolset):
    """Remembers whether episodes are said to be training."""

    def open(self, task: Task, episode: EpisodeContext) -> Any:
        self.events.append(("training", str(episode.training)))
        return super().open(task, episode)


class Setup:
    def __init__(self, reward: Any = None, max_error_rate: float = 0.2, **config: Any) -> None:
        self.engine = ScriptedEngine(["answer"], CHAT)
        self.tools = Watched()
        self.episodes: list[Episode] = []
        room = Environment(
            "default",
            FakeParser(),
            CHAT,
            ToolBox([ToolEntry("echo", self.tools)]),
            [NamedReward("first", reward or FirstOfEach())],
        )
        runner = Runner(self.engine, {"default": room}, on_episode=self.episodes.append, max_error_rate=max_error_rate)
        tasks = [make_task(f"question {number}", id=f"task-{number}") for number in range(5)]
        self.evaluator = Evaluator(runner, tasks, Limits(50, 500, temperature=0.8), EvaluationConfig(**config))

    def run(self, step: int = 3) -> dict[str, float]:
        return asyncio.run(self.evaluator.run(step))


@pytest.mark.parametrize(("tasks", "expected"), [(None, 5), (2, 2), (9, 5)])
def test_the_first_tasks_are_taken_in_their_order(tasks: int | None, expected: int) -> None:
    setup = Setup(tasks=tasks)
    assert [task.id for task in setup.evaluator.tasks()] == [f"task-{number}" for number in range(expected)]
    setup.run()
    assert sorted(episode.task.id for episode in setup.episodes) == [f"task-{number}" for number in range(expected)]


def test_k_episodes_a_task_give_avg_and_pass_at_k() -> None:
    setup = Setup(tasks=3, episodes_per_task=4)
    metrics = setup.run()
    assert len(setup.episodes) == 12
    assert metrics["avg@4"] == metrics["accuracy"] == 0.25
    assert metrics["pass@4"] == 1.0
    assert metrics["time/eval"] > 0.0


def test_a_verifier_that_raises_makes_no_answer_right() -> None:
    class Raises(FirstOfEach):
        async def score(self, episode: Episode) -> Score:
            if episode.index == 3:
                raise RuntimeError("the verifier is broken")
            return Score(1.0, metrics={"correct": 1.0})

    metrics = Setup(reward=Raises(), tasks=2, episodes_per_task=4, max_error_rate=0.3).run()
    assert metrics["accuracy"] == metrics["avg@4"] == 0.75
    assert metrics["errors/count"] == 2.0


@pytest.mark.parametrize(("temperature", "used", "kept"), [(None, 0.8, 0.8), (0.0, 0.0, 1.0), (0.3, 0.3, 0.3)])
def test_the_temperature_is_its_own_or_the_rollouts(temperature: float | None, used: float, kept: float) -> None:
    setup = Setup(tasks=1, temperature=temperature)
    setup.run()
    assert [generated.sampling.temperature for generated in setup.engine.generated] == [used]
    assert setup.episodes[0].temperature == kept, "log-probabilities of greedy sampling are those at 1"
