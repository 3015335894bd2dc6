"""An ablation: the same tasks and seeds without tools, with the answers of other tasks, and with tools that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.config.model import EvaluationConfig
from toolrl.errors import ConfigError
from toolrl.loop.evaluate import Evaluator, ablate
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Score, Task, ToolResult
from toolrl_testing.fakes import FakeChatFormat, FakeParser, RecordingToolset, ScriptedEngine, make_task

CHAT = FakeChatFormat()
CONDITIONS = ("none", "shuffled", "failing")


class Secrets(RecordingToolset):
    """Tells a task's secret; that of the last task can't be told."""

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
        async with super().open(task, episode) as session:
            number = int(task.id)
            known = ToolResult(f"secret {number}") if number < 9 else ToolResult("it is locked", error="tool_error")
            self.answer = lambda call: known
            yield session


class Told:
    """1 where the answer is the task's secret."""

    async def score(self, episode: Episode) -> Score:
        right = float(episode.calls[0].result.text == f"secret {episode.task.id}")
        return Score(right, metrics={"correct": right})


class Setup:
    def __init__(self, k: int = 1) -> None:
        self.engine = ScriptedEngine(lambda prompt: "look" if "look" not in prompt else "done", CHAT)
        self.tools, self.episodes = Secrets(), list[Episode]()
        parser = FakeParser(lambda text: ["echo"] if text == "look" else [])
        box = ToolBox([ToolEntry("secrets", self.tools)])
        self.environments = {"default": Environment("default", parser, CHAT, box, [NamedReward("told", Told())])}
        runner = Runner(self.engine, self.environments, on_episode=self.episodes.append, concurrency=1)
        tasks = [make_task("question", id=str(number)) for number in range(10)]
        self.evaluator = Evaluator(runner, tasks, Limits(50, 500), EvaluationConfig(episodes_per_task=k))

    def run(self, seed: int = 0, conditions: tuple[str, ...] = CONDITIONS) -> dict[str, float]:
        return asyncio.run(ablate(self.evaluator, self.environments, conditions, seed))

    def answers(self, condition: str) -> list[str]:
        """Those of each task, in the order of tasks."""
        mine = [it for it in self.episodes if it.id.startswith(f"{condition}eval-0/")]
        return [it.calls[0].result.text for it in sorted(mine, key=lambda it: it.id)]


def test_what_the_tools_give_is_taken_away() -> None:
    setup = Setup(k=2)
    metrics = setup.run()
    assert metrics["accuracy"] == 0.9
    for condition in CONDITIONS:
        assert metrics[f"ablation/{condition}/accuracy"] == 0.0
        assert metrics[f"ablation/{condition}/benefit/accuracy"] == 0.9
        assert (
            metrics[f"ablation/{condition}/benefit/accuracy/stderr"] == metrics["accuracy/stderr"] == pytest.approx(0.1)
        )
        low, high = (metrics[f"ablation/{condition}/benefit/accuracy/{end}"] for end in ("low", "high"))
        assert 0.4 < low < 0.9 < high < 1.0, "no share is above 1"
    assert all("no tools are available" in it for it in setup.answers("none/"))
    assert all("is unavailable" in it for it in setup.answers("failing/"))
    assert setup.tools.count("call") == 2 * 20, "with the tools, and under `shuffled`"
    assert setup.tools.count("reward") == 4 * 20, "sessions are there under each condition"
    seeds = {it.sampling.seed for it in setup.engine.generated}
    assert len(seeds) == len({it.sampling.seed for it in setup.engine.generated[: len(setup.engine.generated) // 4]})


def test_shuffled_answers_are_those_of_other_tasks_and_of_the_seed() -> None:
    first, again, other = Setup(), Setup(), Setup()
    first.run(seed=0, conditions=("shuffled",)), again.run(seed=0), other.run(seed=1)
    answers = first.answers("shuffled/")
    assert answers == again.answers("shuffled/") != other.answers("shuffled/")
    assert answers[9] == "it is locked", "errors stay"
    for number, answer in enumerate(answers[:9]):
        assert answer in {f"secret {it}" for it in range(9) if it != number}


def test_a_task_without_tools_to_take_away_is_refused() -> None:
    setup = Setup()
    setup.environments = {}
    with pytest.raises(ConfigError, match="environments.default names no tools"):
        setup.run()
    assert not setup.episodes
