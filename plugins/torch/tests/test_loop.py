"""The training loop with a trainer that only counts: what is evaluated, saved and reported on every way out."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from toolrl.config.sections import as_config, with_sections
from toolrl.errors import RunStoppedError
from toolrl.loop.data import EndlessOrder
from toolrl.loop.evaluate import Evaluator
from toolrl.protocols import StepReport
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import CallError, CallRecord, Episode, Group, RewardEntry, Score, ToolCall, ToolResult
from toolrl_plugin_torch.fine_tuning.loop import FineTuningLoop
from toolrl_plugin_torch.loop.batches import DataPosition, Demand, SynchronousBatches
from toolrl_plugin_torch.loop.training import TrainingLoop
from toolrl_plugin_torch.options import SftConfig, TorchOptions
from toolrl_testing.fakes import FakeChatFormat, FakeParser, FakeWeights, ScriptedEngine, make_episode, make_task

LIMITS = Limits(max_turn_tokens=20, max_episode_tokens=200)


class Right:
    """Every answer is right."""

    async def score(self, episode: Episode) -> Score:
        return Score(1.0, metrics={"correct": 1.0})


@dataclass
class Counting:
    """A trainer and its saver: an update is one more step."""

    step: int = 0
    last_step: int = 0
    saved: list[int] = field(default_factory=list)
    every: int = 0
    best: Collection[int] = ()
    """Steps whose evaluation is the best so far."""
    on_update: Callable[[], None] = lambda: None
    on_save: Callable[[], None] = lambda: None
    flat: float = 0.0

    def due(self, error: BaseException | None) -> bool:
        return self.step > self.last_step

    def scheduled(self) -> bool:
        return self.step != self.last_step and bool(self.every) and self.step % self.every == 0

    def judge(self, step: int, metrics: Any) -> bool:
        return step in self.best

    def update(self, batch: Sequence[Any]) -> dict[str, float]:
        self.on_update()
        self.step += 1
        return {"updated": float(len(batch)), "groups/flat": self.flat}

    def weights(self) -> FakeWeights:
        return FakeWeights(self.step)

    def save(self) -> Path:
        self.on_save()
        self.saved.append(self.step)
        self.last_step = self.step
        return Path(f"step-{self.step}")


@dataclass
class Seen:
    """The events of a run."""

    reports: list[StepReport] = field(default_factory=list)

    def steps(self, kind: str) -> list[int]:
        return [report.step for report in self.reports if report.kind == kind]

    def step_end(self, report: StepReport) -> None:
        self.reports.append(report)

    def checkpoint_saved(self, step: int, path: Path) -> None:
        pass


class Setting:
    """A run whose every part but the loop is simple."""

    def __init__(self, *, step: int = 0, evaluated: Collection[int] = (), steps: int = 4, **sections: Any) -> None:
        self.events = Seen()
        self.engine = ScriptedEngine(["x"])
        rewards = (NamedReward("right", Right()),)
        environment = Environment("default", FakeParser(), FakeChatFormat(), ToolBox(()), rewards)
        trainer = {"steps": steps, "prompts_per_step": 2, **sections.pop("trainer", {})}
        frame = {"model": {"path": "m"}, "environments": {"default": {}}, "algorithm": {"group_size": 2}}
        self.trainer = Counting(step=step, last_step=step, every=trainer.get("save_every", 0))
        self.config = as_config(with_sections(TorchOptions).model_validate({**frame, "trainer": trainer, **sections}))
        self.runner = Runner(self.engine, {"default": environment})
        tasks = [make_task(id=f"t{number}") for number in range(3)]
        self.evaluator = Evaluator(self.runner, tasks, LIMITS, self.config.evaluation)
        demand = Demand(steps, trainer["prompts_per_step"], 2, LIMITS)
        self.supply = SynchronousBatches(self.runner, EndlessOrder(tasks, seed=0), demand)
        self.supply.resume(step, DataPosition(step * trainer["prompts_per_step"]))
        self.evaluated = evaluated

    def loop(self) -> TrainingLoop:
        return TrainingLoop(
            config=self.config,
            trainer=self.trainer,
            batches=self.supply,
            engine=self.engine,
            events=self.events,  # type: ignore[arg-type]
            saver=self.trainer,  # type: ignore[arg-type]
            evaluator=self.evaluator,
            evaluated=self.evaluated,
        )

    def run(self) -> None:
        asyncio.run(self.loop().run())


@pytest.mark.parametrize(
    ("steps", "every", "save_every", "best", "evaluated", "saved"),
    [
        (4, 0, 0, (), [0, 4], [4]),
        (5, 2, 2, (), [0, 2, 4, 5], [2, 4, 5]),
        (6, 2, 3, (2, 6), [0, 2, 4, 6], [2, 3, 6]),  # the best when it is found, and no step twice
        (4, 2, 2, (2, 4), [0, 2, 4], [2, 4]),
    ],
)
def test_what_is_evaluated_and_saved(
    steps: int, every: int, save_every: int, best: Collection[int], evaluated: list[int], saved: list[int]
) -> None:
    run = Setting(steps=steps, evaluation={"every": every}, trainer={"save_every": save_every})
    run.trainer.best = best
    run.run()
    assert run.events.steps("train") == list(range(1, steps + 1))
    assert run.events.steps("eval") == evaluated
    assert run.trainer.saved == saved


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_engine_rests_while_the_trainer_works_and_nothing_is_sampled(staleness: int) -> None:
    run, seen = Setting(steps=2, rollout={"max_staleness": staleness}), []

    async def rest() -> None:
        seen.append("rest")

    async def update_weights(weights: Any, version: int) -> None:
        seen.append(f"weights {version}")

    run.engine.rest = rest  # type: ignore[attr-defined]
    run.engine.update_weights = update_weights  # type: ignore[method-assign]
    run.trainer.on_update = lambda: seen.append("update")
    run.run()
    before = [] if staleness else ["rest"]
    assert seen == [*before, "update", "weights 1", *before, "update", "weights 2"]


@pytest.mark.parametrize(
    ("step", "evaluated", "expected"),
    [
        (2, {0, 2}, [4]),
        (2, {0}, [2, 4]),
        (3, {0, 2}, [4]),
        (4, {0, 2}, [4]),
        (4, {0, 2, 4}, []),
        (0, {0}, [2, 4]),
    ],
)
def test_a_resumed_run_makes_up_for_an_evaluation_that_was_cut_off(
    step: int, evaluated: set[int], expected: list[int]
) -> None:
    run = Setting(step=step, evaluated=evaluated, evaluation={"every": 2})
    run.run()
    assert run.events.steps("eval") == expected


async def test_an_interrupt_in_an_update_takes_effect_after_it() -> None:
    run = Setting()
    task = asyncio.ensure_future(run.loop().run())
    loop, cancelled = asyncio.get_running_loop(), threading.Event()

    def cancel() -> None:
        task.cancel()
        cancelled.set()

    def interrupt() -> None:
        loop.call_soon_threadsafe(cancel)
        assert cancelled.wait(10)

    run.trainer.on_update = interrupt
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.trainer.saved == [1]
    assert run.events.steps("train") == [1]


async def test_an_interrupt_while_weights_are_handed_over_keeps_the_steps_metrics() -> None:
    run = Setting()
    task = asyncio.ensure_future(run.loop().run())

    async def never(weights: Any, version: int) -> None:
        task.cancel()
        await asyncio.sleep(60)

    run.engine.update_weights = never  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.trainer.saved == [1]
    assert run.events.steps("train") == [1]


def test_a_failed_update_leaves_the_last_complete_step_saved_and_no_thread() -> None:
    run = Setting()

    def fail_later() -> None:
        if run.trainer.step == 2:
            raise RunStoppedError("not finite")

    run.trainer.on_update = fail_later
    with pytest.raises(RunStoppedError, match="not finite"):
        run.run()
    assert run.trainer.saved == [2]
    assert not _update_threads()


class Rows:
    """A source of demonstrations that are nothing."""

    async def take(self, position: int, count: int) -> list[Any]:
        return [None] * count


def fine_tuning(run: Setting, *, accuracy: float = 1.0) -> FineTuningLoop:
    settings = SftConfig.model_validate(
        {"data": "rows", "steps": 4, "batch_size": 2, "probe": {"every": 2, "accuracy": accuracy}}
    )
    return FineTuningLoop(
        settings=settings,
        trainer=run.trainer,  # type: ignore[arg-type]
        demonstrations=Rows(),
        engine=run.engine,
        events=run.events,  # type: ignore[arg-type]
        saver=run.trainer,  # type: ignore[arg-type]
        evaluator=run.evaluator,
    )


def test_fine_tuning_stops_when_the_probe_is_satisfied() -> None:
    run = Setting()
    assert asyncio.run(fine_tuning(run).run()) == 1.0
    assert (run.trainer.step, run.trainer.saved) == (2, [2])


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_fine_tuning_that_is_good_enough_trains_no_more(step: int) -> None:
    run = Setting(step=step)
    assert asyncio.run(fine_tuning(run).run()) == 1.0
    assert run.trainer.step == step
    assert not run.trainer.saved


def _update_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("toolrl-update")]


# What the run warns of.


BROKEN = {0: [CallRecord(CallError("unclosed", "?"), ToolResult("?", error="malformed"))]}
CALLED = {0: [CallRecord(ToolCall("calculator", {}), ToolResult("4"))]}
Outcome = Callable[[int, int, bool], float]
"""The reward by step, task and whether the episode calls the tool."""


class Given(SynchronousBatches):
    """Steps of eight groups, of which half the episodes call while `calls(step)` says so, and one tries in vain."""

    def __init__(self, calls: Callable[[int], bool], reward: Outcome) -> None:
        self.calls, self.reward = calls, reward

    async def take(self, step: int) -> list[Group]:
        return [self.group(step, number) for number in range(8)]

    def group(self, step: int, number: int) -> Group:
        episodes = []
        for index in range(4):
            called = self.calls(step) and index < 2
            reward = RewardEntry(None, "reward:r", self.reward(step, number, called))
            episodes.append(
                make_episode(
                    "x", "y", calls=CALLED if called else BROKEN if index == 3 else {}, rewards=(reward,), index=index
                )
            )
        return Group(f"{step}/{number}", make_task(), tuple(episodes))

    def trained(self, step: int) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {}


def always(step: int) -> bool:
    return True


def at_first(step: int) -> bool:
    return step < 4


def never(step: int) -> bool:
    return False


def chance(step: int, number: int, called: bool) -> float:
    return float(random.Random(f"{step}/{number}/{called}").random() < 0.5)


def helpful(step: int, number: int, called: bool) -> float:
    return float(random.Random(f"{step}/{number}/{called}").random() < (0.7 if called else 0.4))


def by_task(step: int, number: int, called: bool) -> float:
    return float(number)


@pytest.mark.parametrize(
    ("calls", "reward", "flat", "algorithm", "said"),
    [
        (always, helpful, 0.0, {}, []),
        (
            always,
            chance,
            0.0,
            {},
            ["episodes that called a tool came out hardly better than others of the same"],
        ),
        (never, chance, 0.0, {}, ["an episode makes 0 calls that succeed, at most 0 in a step before"]),
        (at_first, helpful, 0.0, {}, ["an episode makes 0.025 calls that succeed, at most 0.5 in a step before."]),
        (always, lambda *_: 1.0, 1.0, {}, ["every episode got the reward 1: there is nothing to learn from"]),
        (always, by_task, 1.0, {}, ["in no group did rewards differ"]),
        (always, by_task, 1.0, {"preset": "reinforce_plus_plus"}, []),
        (always, by_task, 1.0, {"distillation": {"teachers": {"default": {"model": "m"}}}}, []),
    ],
)
def test_what_keeps_a_run_from_learning_is_said_once(
    calls: Any, reward: Any, flat: float, algorithm: Any, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    environments = {"default": {"tools": ["calculator"]}}
    setting = Setting(steps=45, environments=environments, algorithm={"group_size": 4, **algorithm})
    setting.supply, setting.trainer.flat = Given(calls, reward), flat
    with caplog.at_level(logging.WARNING):
        setting.run()
    messages = [record.getMessage() for record in caplog.records]
    assert [message.startswith(f"the last 20 steps: {text}") for message, text in zip(messages, said, strict=True)] == [
        True for _ in said
    ], messages
