"""What the commands do with an assembled run: train, evaluate, sample; and what jobs of trainers share with them."""

from __future__ import annotations

import logging
from typing import Any

from toolrl.assembly import Assembly
from toolrl.config.model import Config
from toolrl.config.remarks import remarks
from toolrl.errors import CheckpointError
from toolrl.loop.batches import BatchSource, Demand, KeepsPosition, SynchronousBatches
from toolrl.loop.metrics import episode_metrics
from toolrl.loop.overlap import OverlappingBatches
from toolrl.loop.saver import Saver
from toolrl.loop.training import TrainingLoop
from toolrl.protocols import StepReport, Trainer
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import GroupSource
from toolrl.runs.folder import RunFolder

_log = logging.getLogger(__name__)


async def train(assembly: Assembly) -> None:
    """Reinforcement learning from the run's last checkpoint, or from the start, to trainer.steps."""
    with assembly.ranks.explaining():
        await _train(assembly)


async def _train(assembly: Assembly) -> None:
    config, ranks = assembly.config, assembly.ranks
    for remark in remarks(config, assembly.registry):
        _log.warning("%s", remark)
    trainer = assembly.backend.policy_trainer(
        assembly.model,
        assembly.folder.directory,
        temperature=assembly.limits.policy_temperature,
        longest=longest_episode(config, assembly.limits),
        estimator=assembly.built("advantages", "algorithm.advantage", config.algorithm.advantage),
        custom_loss=assembly.built("policy_losses", "algorithm.policy_loss", config.algorithm.policy_loss),
        ranks=ranks,
    )
    batches = ranks.batches(assembly.runner, lambda runner: _batches(assembly, runner))
    rows = len(assembly.dataset("train")) if ranks.first else None  # The first rank writes it, and remarks on it.
    settings = config.trainer
    saver = make_saver(assembly, trainer, batches, rows=rows, keep=settings.keep_checkpoints, every=settings.save_every)
    saver.best_by = config.trainer.best_by
    await resume(assembly, saver)
    warn_where_done(trainer.step, config.trainer.steps, "trainer.steps")
    evaluations = ranks.by_first(
        lambda: [(line.step, line.metrics) for line in assembly.folder.metrics_lines("eval")], "the evaluations so far"
    )
    saver.recall(evaluations)
    loop = TrainingLoop(
        config=config,
        trainer=trainer,
        batches=batches,
        engine=assembly.engine,
        events=assembly.events,
        saver=saver,
        evaluator=assembly.evaluator(),
        evaluated={step for step, _ in evaluations},
        worker_metrics=assembly.worker_metrics,
        phase=assembly.phase,
    )
    assembly.events.run_start()
    await loop.run()


def warn_where_done(step: int, steps: int, field: str) -> None:
    """Remark on a run that has no step left; `field` is the place of `steps` in the config."""
    if step >= steps:
        _log.warning(
            "the run stands at step %d, and %s is %d: no step is left; `--set %s=N` makes it longer",
            step,
            field,
            steps,
            field,
        )


def longest_episode(config: Config, limits: Limits) -> int:
    """The most tokens that an episode of any environment can sample."""
    turns = max(environment.max_turns for environment in config.environments.values())
    return min(turns * limits.max_turn_tokens, limits.max_episode_tokens)


async def evaluate(assembly: Assembly) -> dict[str, Any]:
    """One evaluation on data.eval: its metrics."""
    evaluator = assembly.evaluator()
    assert evaluator is not None, "assemble() refuses a config without data.eval"
    assembly.events.run_start()
    assembly.phase.begin("evaluating")
    metrics = await evaluator.run(0)
    assembly.events.step_end(StepReport(0, "eval", metrics))
    return dict(metrics)


async def sample(assembly: Assembly, tasks: int, episodes: int) -> dict[str, Any]:
    """`episodes` episodes of each of the first training tasks: their metrics."""
    assembly.events.run_start()
    assembly.phase.begin("sampling")
    groups = await assembly.runner.run(assembly.order().take(0, tasks), episodes, assembly.limits, round_id="rollout")
    metrics = episode_metrics(groups)
    assembly.events.step_end(StepReport(0, "rollout", metrics))
    return dict(metrics)


def _batches(assembly: Assembly, runner: GroupSource) -> BatchSource:
    config = assembly.config
    demand = Demand(
        steps=config.trainer.steps,
        rows=config.trainer.prompts_per_step,
        group_size=config.algorithm.group_size,
        limits=assembly.limits,
        flat=assembly.backend.is_flat if config.algorithm.dynamic_sampling else None,
    )
    rollout, order = config.rollout, assembly.order()
    if rollout.max_staleness:
        return OverlappingBatches(runner, order, demand, max_staleness=rollout.max_staleness, replay=rollout.replay)
    return SynchronousBatches(runner, order, demand)


def make_saver(
    assembly: Assembly, trainer: Trainer, data: KeepsPosition, *, rows: int | None, keep: int, every: int | str
) -> Saver:
    """Saves a run's checkpoints: `keep` of them, one each `every` steps or so much time. `rows` are those of its data
    set, where this process knows them."""
    checkpoints, config = assembly.folder.checkpoints, assembly.loaded.resolved
    before = assembly.folder.configs_before() if assembly.resume else ()
    return Saver(trainer, checkpoints, keep, data, config, rows, ranks=assembly.ranks, before=before, every=every)


async def resume(assembly: Assembly, saver: Saver) -> None:
    """Take up the run's last checkpoint, and hand its weights to the engine, where the command resumes a run. Raises
    CheckpointError."""
    if assembly.resume:
        step = saver.restore()
        if assembly.ranks.first:
            if not step:
                _check_nothing_is_lost(assembly.folder)
            assembly.folder.rewind(step)
        await assembly.engine.update_weights(saver.trainer.weights(), step)


def _check_nothing_is_lost(folder: RunFolder) -> None:
    """Raise CheckpointError for a run without a checkpoint that has written one: it would start over, and what it
    recorded would be deleted."""
    lines = folder.metrics_lines()
    done = max((line.step for line in lines if line.kind != "eval"), default=0)
    before = RunFolder.open(folder.directory)  # As the process before this one left it, its config too.
    section = before.config.get("sft" if any(line.kind == "sft" for line in lines) else "trainer")
    every = section.get("save_every", 0) if isinstance(section, dict) else 0
    if done and ((isinstance(every, int) and 0 < every < done) or before.summary().get("status") == "finished"):
        raise CheckpointError(
            f"there is no checkpoint, and the run has done {done} steps, which left one: it is elsewhere, or deleted",
            where=str(folder.checkpoints),
            hint="Bring it back, or start over by --overwrite, which deletes what was recorded too.",
        )
