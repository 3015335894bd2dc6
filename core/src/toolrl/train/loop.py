"""The training loop: roll out, update, hand the weights over, evaluate, save.

The loop runs on the event loop of the controller process; the update runs in one thread of its own, so that torch keeps
one pool of threads and the event loop stays alive. A cancellation (Ctrl-C, SIGTERM) is taken between updates: a running
update is finished first, so that model, optimizer and step counter always belong together, and a checkpoint is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolrl.config.model import Config
from toolrl.plugins.events import Events
from toolrl.protocols import RolloutEngine, StepReport
from toolrl.rollout.environment import Limits
from toolrl.rollout.runner import Runner
from toolrl.train.data import TaskOrder
from toolrl.train.evaluate import Evaluator
from toolrl.train.metrics import episode_metrics
from toolrl.types import Group


class Updater(Protocol):
    """What the loop needs of a trainer; in one process or in many."""

    step: int

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step's update from its groups; advances `step`."""
        ...

    def weights(self) -> Any:
        """The current weights as a WeightSource."""
        ...

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        ...


@dataclass
class TrainingLoop:
    """One run's training. `run` may be called once."""

    config: Config
    trainer: Updater
    runner: Runner
    engine: RolloutEngine
    order: TaskOrder
    limits: Limits
    events: Events
    evaluator: Evaluator | None = None
    last_saved: int = -1
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "toolrl-update"))

    async def run(self) -> None:
        """From the trainer's step to the last. On every way out the last complete step is saved."""
        try:
            if self.trainer.step == 0 and self.evaluator is not None:
                await self._evaluate()
            while self.trainer.step < self.config.trainer.steps:
                await self._step()
                await self._after_step()
        finally:
            if self.trainer.step > max(self.last_saved, 0):
                await self._finished(self._save)
            self._thread.shutdown()

    async def _step(self) -> None:
        trainer, settings = self.config.trainer, self.config.algorithm
        started = time.perf_counter()
        step = self.trainer.step + 1
        tasks = self.order.take(self.trainer.step * trainer.prompts_per_step, trainer.prompts_per_step)
        groups = await self.runner.run(tasks, settings.group_size, self.limits, round_id=f"train-{step}")
        rolled = time.perf_counter()
        metrics, interrupted = await self._finished(self.trainer.update, groups)
        updated = time.perf_counter()
        await self.engine.update_weights(self.trainer.weights(), self.trainer.step)
        done = time.perf_counter()
        sampled = sum(episode.sampled_tokens for group in groups for episode in group.episodes)
        episodes = sum(len(group.episodes) for group in groups)
        metrics = {
            **episode_metrics(groups),
            **metrics,
            "time/rollout": rolled - started,
            "time/update": updated - rolled,
            "time/weights": done - updated,
            "time/step": done - started,
            "speed/tokens_per_second": sampled / max(rolled - started, 1e-9),
            "speed/episodes_per_second": episodes / max(done - started, 1e-9),
        }
        self.events.step_end(StepReport(step, "train", metrics))
        if interrupted:
            raise asyncio.CancelledError

    async def _after_step(self) -> None:
        step, total = self.trainer.step, self.config.trainer.steps
        every = self.config.evaluation.every
        if self.evaluator is not None and (step == total or (every and step % every == 0)):
            await self._evaluate()
        if self.config.trainer.save_every and step % self.config.trainer.save_every == 0:
            await self._finished(self._save)

    async def _evaluate(self) -> None:
        assert self.evaluator is not None
        metrics = await self.evaluator.run(self.trainer.step)
        self.events.step_end(StepReport(self.trainer.step, "eval", metrics))

    def _save(self) -> None:
        self.trainer.save()
        self.last_saved = self.trainer.step

    async def _finished(self, function: Callable[..., Any], *args: Any) -> tuple[Any, bool]:
        """Run in the update's thread to its end, even when cancelled meanwhile; whether that happened."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        interrupted = False
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                interrupted = True
        return future.result(), interrupted
