"""What `toolrl sft` does with an assembled run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl.assembly import Assembly
from toolrl.errors import ConfigError
from toolrl.loop.data import EndlessOrder
from toolrl.runs.folder import RunFolder
from toolrl.types import Episode
from toolrl_plugin_torch.fine_tuning.demonstrations import from_episodes
from toolrl_plugin_torch.fine_tuning.loop import Demonstrations, FineTuningLoop
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.job import make_saver, resume, warn_where_done
from toolrl_plugin_torch.options import SftConfig
from toolrl_plugin_torch.trainer import SupervisedTrainer


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
