"""`toolrl sft`: batches of demonstrations, and a probe that ends it when the model is good enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolrl.assembly import Assembly
from toolrl.errors import ConfigError, RunStoppedError
from toolrl.loop.data import EndlessOrder
from toolrl.protocols import StepReport
from toolrl.rollouts.environment import Environment
from toolrl.runs.folder import RunFolder
from toolrl.types import Episode, Task
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration, encode_task, from_episodes
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.job import make_saver, resume, warn_where_done
from toolrl_plugin_torch.loop.training import SavedLoop
from toolrl_plugin_torch.options import SftConfig
from toolrl_plugin_torch.trainer import SupervisedTrainer

_FROM_RUN = "sft.from_run"


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


async def fine_tune(assembly: Assembly, settings: SftConfig) -> dict[str, Any]:
    """Supervised fine-tuning to `settings.steps`, or until the probe is satisfied. `settings` is the config's `sft`."""
    assembly.phase.begin("preparing the trainer")
    evaluator = assembly.evaluator()
    demonstrations = find_demonstrations(assembly, settings)
    trainer = SupervisedTrainer(assembly.model, settings, assembly.folder.directory)
    saver = make_saver(
        assembly,
        trainer,
        FixedRows(settings.batch_size),
        keep=settings.keep_checkpoints,
        every=settings.save_every,
    )
    saver.rows = demonstrations.order.rows
    if settings.data is None and (digest := demonstrations.order.digest()) is not None:
        saver.digests = {**saver.digests, _FROM_RUN: digest}
    await resume(assembly, saver)
    warn_where_done(trainer.step, settings.steps, "sft.steps")
    loop = FineTuningLoop(
        settings=settings,
        trainer=trainer,
        demonstrations=demonstrations,
        engine=assembly.engine,
        events=assembly.events,
        saver=saver,
        evaluator=evaluator,
        phase=assembly.phase,
    )
    assembly.events.run_start()
    assembly.phase.begin("fine-tuning")
    accuracy = await loop.run()
    return {"steps": trainer.step} | ({"accuracy": accuracy} if accuracy is not None else {})


def find_demonstrations(assembly: Assembly, settings: SftConfig) -> Demonstrations:
    """Those that `settings` name: of a data set, or a run's episodes. Raises ConfigError where none is good enough."""
    seed = assembly.config.seed
    if settings.data is not None:
        rows = assembly.tasks("sft.data", settings.data)
        return Demonstrations(EndlessOrder(rows, seed=seed, where="sft.data"), assembly.environments)
    assert settings.from_run is not None, "a config has one of the two"
    items = from_episodes(_rolled_out(RunFolder.open(settings.from_run)), settings.min_reward)
    if not items:
        raise ConfigError(
            f"sft.from_run: no episode of {settings.from_run!r} has a reward of {settings.min_reward:g} or more; those "
            "of evaluations don't count",
            hint="Lower sft.min_reward, or take another run.",
        )
    return Demonstrations(EndlessOrder(items, seed=seed))


def _rolled_out(folder: RunFolder) -> Iterator[Episode]:
    """A run's episodes without those of evaluations: a model isn't trained on the tasks that it is evaluated on."""
    return (stored.episode for stored in folder.episodes() if stored.kind != "eval")
