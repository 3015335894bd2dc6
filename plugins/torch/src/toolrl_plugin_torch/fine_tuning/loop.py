"""Supervised fine-tuning: batches of demonstrations, and a probe that ends it when the model is good enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolrl.errors import RunStoppedError
from toolrl.loop.data import EndlessOrder
from toolrl.protocols import StepReport
from toolrl.rollouts.environment import Environment
from toolrl.types import Task
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration, encode_task
from toolrl_plugin_torch.loop.update_thread import SavedLoop
from toolrl_plugin_torch.options import SftConfig


@dataclass
class Demonstrations:
    """Batches of demonstrations by position in an endless sequence: stored ones as they are; tasks, whose messages hold
    the assistant's turns, are encoded when they are taken."""

    order: EndlessOrder[Task | Demonstration]
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """For tasks."""

    async def take(self, position: int, count: int) -> list[Demonstration]:
        rows = self.order.take(position, count)
        return [row if isinstance(row, Demonstration) else await encode_task(row, self.environments) for row in rows]


@dataclass(kw_only=True)
class FineTuningLoop(SavedLoop):
    """One run of fine-tuning. `run` may be called once."""

    settings: SftConfig
    demonstrations: Demonstrations

    async def run(self) -> float | None:
        """The last probe's accuracy, or None where there is no probe. Raises RunStoppedError where it asks for an
        accuracy that isn't reached."""
        async with self._saving():
            # A resumed run may have been interrupted in its probe, or be good enough already.
            accuracy = await self._probe(None) if self.trainer.step else None
            while not self._good_enough(accuracy) and self.trainer.step < self.settings.steps:
                await self._step()
                accuracy = await self._probe(accuracy)
                await self._save_if_due()
        if self.settings.probe is not None and not self._good_enough(accuracy):
            raise RunStoppedError(
                f"after all {self.settings.steps} steps the probe's accuracy is {accuracy or 0.0:.1%}, and "
                f"sft.probe.accuracy asks for {self.settings.probe.accuracy:.1%}",
                hint="Give it more sft.steps, another learning rate or seed; the checkpoint of the last step is kept.",
            )
        return accuracy

    async def _step(self) -> None:
        started = time.perf_counter()
        size = self.settings.batch_size
        batch = await self.demonstrations.take(self.trainer.step * size, size)
        encoded = time.perf_counter()
        metrics, interrupted = await self._thread.run(self.trainer.update, batch)
        done = time.perf_counter()
        metrics["time/encode"] = encoded - started
        metrics["time/update"] = done - encoded
        metrics["time/step"] = done - started
        self.events.step_end(StepReport(self.trainer.step, "sft", metrics))
        if interrupted:
            raise asyncio.CancelledError

    async def _probe(self, accuracy: float | None) -> float | None:
        probe = self.settings.probe
        if probe is None or self.evaluator is None:
            return accuracy
        step = self.trainer.step
        if step % probe.every and step != self.settings.steps:
            return accuracy
        await self.engine.update_weights(self.trainer.weights(), step)
        metrics = await self.evaluator.run(step)
        self.events.step_end(StepReport(step, "eval", metrics))
        return metrics.get("accuracy", 0.0)

    def _good_enough(self, accuracy: float | None) -> bool:
        probe = self.settings.probe
        return probe is not None and accuracy is not None and accuracy >= probe.accuracy
