"""The training loop: roll out, update, hand the weights over, evaluate, save.

The loop runs on the event loop of the controller process; updates run in a thread of their own, so that tools and
console stay alive meanwhile. A cancellation (Ctrl-C, SIGTERM) that arrives during an update takes effect after it, so
that model, optimizer and step counter always belong together; on every way out the last complete step is saved, and its
metrics are reported.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from toolrl.config.model import Config
from toolrl.loop.evaluate import Evaluator
from toolrl.loop.metrics import episode_metrics
from toolrl.plugins.events import Events
from toolrl.protocols import Rests, StepReport
from toolrl.rollouts.source import TakesWeights
from toolrl.runs.status import RunPhase
from toolrl.types import Group
from toolrl_plugin_torch.base_trainer import BaseTrainer
from toolrl_plugin_torch.loop.batches import BatchSource, staleness_metrics
from toolrl_plugin_torch.loop.learning_checks import LearningChecks
from toolrl_plugin_torch.loop.saver import Saver

P = ParamSpec("P")
T = TypeVar("T")


class UpdateThread:
    """One thread for all torch work of training: torch keeps a pool of threads for each that calls it.

    A context manager: leaving it ends the thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "toolrl-update")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """Run to the end, even when cancelled meanwhile: the result, and whether a cancellation waits."""
        future = self._executor.submit(function, *args, **kwargs)
        waiting = asyncio.wrap_future(future)
        interrupted = False
        while not waiting.done():
            try:
                await asyncio.wait([waiting])
            except asyncio.CancelledError:
                interrupted = True
        return waiting.result(), interrupted

    def __enter__(self) -> UpdateThread:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()


@dataclass(kw_only=True)
class SavedLoop:
    """What fine-tuning and reinforcement learning have in common: updates in a thread, and checkpoints."""

    trainer: BaseTrainer
    engine: TakesWeights
    events: Events
    saver: Saver
    evaluator: Evaluator | None = None
    phase: RunPhase = field(default_factory=RunPhase)
    _thread: UpdateThread = field(default_factory=UpdateThread)

    @asynccontextmanager
    async def _saving(self) -> AsyncIterator[None]:
        """Around all steps: on every way out the last complete step is saved."""
        with self._thread:
            try:
                yield
            finally:
                if self.saver.due(sys.exception()):
                    await self._save()

    async def _save_if_due(self) -> None:
        due, interrupted = await self._thread.run(self.saver.scheduled)
        if due:
            await self._save()
        if interrupted:
            raise asyncio.CancelledError

    async def _save(self) -> None:
        with self.phase.during(f"saving the checkpoint of step {self.trainer.step}"):
            path, interrupted = await self._thread.run(self.saver.save)
        self.events.checkpoint_saved(self.saver.last_step, path)
        if interrupted:
            raise asyncio.CancelledError


@dataclass(kw_only=True)
class TrainingLoop(SavedLoop):
    """One run's training. `run` may be called once."""

    config: Config
    batches: BatchSource
    evaluated: Collection[int] = ()
    """Steps whose evaluations an earlier process of this run has done."""
    worker_metrics: Callable[[], Mapping[str, float]] = dict
    """Returns the workers' metrics since its last call."""

    checks: LearningChecks = field(init=False)

    def __post_init__(self) -> None:
        self.checks = LearningChecks(self.config)

    async def run(self) -> None:
        """From the trainer's step to the last one."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.batches.close)
            await stack.enter_async_context(self._saving())
            # Of the first step, or of one whose evaluation was interrupted.
            if self.trainer.step not in self.evaluated:
                await self._evaluate_if_due()
            while self.trainer.step < self.config.trainer.steps:
                await self._step()
                await self._evaluate_if_due()
                await self._save_if_due()

    async def _step(self) -> None:
        started = time.perf_counter()
        step = self.trainer.step + 1
        episodes = self.config.trainer.prompts_per_step * self.config.algorithm.group_size
        self.phase.begin(f"sampling, step {step}", episodes)
        groups = await self.batches.take(step)
        new = groups[: len(groups) - self.batches.replayed]
        rolled_out = time.perf_counter()
        if isinstance(self.engine, Rests) and not self.config.rollout.max_staleness:
            await self.engine.rest()
        self.phase.begin(f"updating, step {step}")
        metrics, interrupted = await self._thread.run(self.trainer.update, groups)
        self.batches.trained(step)
        self.checks.look(new, metrics)
        updated = time.perf_counter()
        metrics |= {**self.batches.metrics(), **staleness_metrics(groups, step - 1)}
        self.phase.begin(f"handing over the weights of step {step}")
        try:
            await self.engine.update_weights(self.trainer.weights(), step)
            self.batches.weights_updated(step)
        finally:
            # The step is complete and will be saved, also where handing over its weights is cut off or fails.
            done = time.perf_counter()
            times = {
                "time/rollout": rolled_out - started,
                "time/update": updated - rolled_out,
                "time/weights": done - updated,
                "time/step": done - started,
            }
            metrics = {**episode_metrics(new), **metrics, **times, **self._speed(new, times), **self.worker_metrics()}
            self.events.step_end(StepReport(step, "train", metrics))
        if interrupted:
            raise asyncio.CancelledError

    async def _evaluate_if_due(self) -> None:
        step, every = self.trainer.step, self.config.evaluation.every
        if step in (0, self.config.trainer.steps) or (every and step % every == 0):
            await self._evaluate()

    async def _evaluate(self) -> None:
        if self.evaluator is not None:
            metrics = {**await self.evaluator.run(self.trainer.step), **self.worker_metrics()}
            self.events.step_end(StepReport(self.trainer.step, "eval", metrics))
            if self.saver.judge(self.trainer.step, metrics):
                await self._save()

    def _speed(self, groups: Sequence[Group], times: dict[str, float]) -> dict[str, float]:
        episodes = [episode for group in groups for episode in group.episodes]
        # Where rollout and training overlap, the time that a step waits for its groups isn't the time they took.
        sampling = times["time/step" if self.config.rollout.max_staleness else "time/rollout"]
        return {
            "speed/tokens_per_second": sum(e.sampled_tokens for e in episodes) / max(sampling, 1e-9),
            "speed/episodes_per_second": len(episodes) / max(times["time/step"], 1e-9),
        }
