"""What `toolrl train` does with an assembled run, and what fine-tuning shares with it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from toolrl.assembly import Assembly
from toolrl.config.model import Config
from toolrl.errors import CheckpointError
from toolrl.loop.data import data_digest
from toolrl.loop.ranks import ONE
from toolrl.rollouts.environment import Limits
from toolrl.runs.folder import RunFolder
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.base_trainer import BaseTrainer
from toolrl_plugin_torch.loop.batches import BatchSource, Demand, KeepsPosition, SynchronousBatches
from toolrl_plugin_torch.loop.difficulty import DifficultyPools
from toolrl_plugin_torch.loop.overlap import OverlappingBatches
from toolrl_plugin_torch.loop.saver import Saver
from toolrl_plugin_torch.loop.teachers import TaughtGroups, Teachers, started_teachers
from toolrl_plugin_torch.loop.training import TrainingLoop
from toolrl_plugin_torch.objective.credit import is_flat
from toolrl_plugin_torch.sharding.rank_rollout import Rank0Batches, Rank0Rollout
from toolrl_plugin_torch.trainer import PolicyTrainer

_log = logging.getLogger(__name__)


async def train(assembly: Assembly) -> None:
    """Reinforcement learning from the run's last checkpoint, or from the start, to trainer.steps."""
    async with started_teachers(assembly) as teachers:
        await _train(assembly, teachers)


async def _train(assembly: Assembly, teachers: Teachers | None) -> None:
    config, ranks = assembly.config, assembly.ranks
    assembly.phase.begin("preparing the trainer")
    algorithm: Any = config.algorithm
    trainer = PolicyTrainer(
        assembly.model,
        config.trainer,
        algorithm,
        assembly.folder.directory,
        temperature=assembly.limits.policy_temperature,
        longest=longest_episode(config, assembly.limits),
        estimator=assembly.built("advantages", "algorithm.advantage", config.algorithm.advantage),
        custom_loss=assembly.built("policy_losses", "algorithm.policy_loss", config.algorithm.policy_loss),
        ranks=ranks,
        cpu_offload=config.cluster.cpu_offload,
    )
    batches = _batches(assembly, algorithm, teachers)
    settings = config.trainer
    saver = make_saver(assembly, trainer, batches, keep=settings.keep_checkpoints, every=settings.save_every)
    saver.rows = len(assembly.dataset("train")) if ranks.first else None  # The first rank writes it.
    saver.best_by = config.trainer.best_by
    await resume(assembly, saver)
    warn_where_done(trainer.step, config.trainer.steps, "trainer.steps")
    evaluations = ranks.by_first(
        lambda: {line.step: line.metrics for line in assembly.folder.metrics_lines("eval")}, "the evaluations so far"
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
        evaluated=evaluations,
        worker_metrics=lambda: {**assembly.worker_metrics(), **(teachers.metrics() if teachers else {})},
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
    """The most tokens that an episode of any environment can sample in one trajectory."""
    turns = max(environment.max_turns for environment in config.environments.values())
    return min(turns * limits.max_turn_tokens, limits.max_episode_tokens)


def _batches(assembly: Assembly, algorithm: AlgorithmConfig, teachers: Teachers | None) -> BatchSource:
    """Where rollout workers sample for several ranks, all get the groups of the first one's source."""
    runner, ranks = assembly.runner, assembly.ranks
    by_first = isinstance(runner, Rank0Rollout)
    source: Any = runner.sampler if isinstance(runner, Rank0Rollout) else runner
    if teachers is not None:
        source = TaughtGroups(source, teachers, ONE if by_first else ranks)
    own = _own_batches(assembly, source, algorithm) if source is not None else None
    return Rank0Batches(ranks, own) if own is None or by_first else own


def _own_batches(assembly: Assembly, runner: Any, algorithm: AlgorithmConfig) -> BatchSource:
    config = assembly.config
    demand = Demand(
        steps=config.trainer.steps,
        rows=config.trainer.prompts_per_step,
        group_size=config.algorithm.group_size,
        limits=assembly.limits,
        flat=partial(is_flat, algorithm=algorithm) if algorithm.dynamic_sampling else None,
    )
    rollout, order = config.rollout, assembly.order()
    pools = DifficultyPools(order, algorithm.difficulty, algorithm.filter_metric)
    if not rollout.max_staleness:
        return SynchronousBatches(runner, order, demand, pools)
    return OverlappingBatches(
        runner, order, demand, max_staleness=rollout.max_staleness, replay=rollout.replay, pools=pools
    )


def make_saver(assembly: Assembly, trainer: BaseTrainer, data: KeepsPosition, *, keep: int, every: int | str) -> Saver:
    """Saves a run's checkpoints: `keep` of them, one each `every` steps or so much time."""
    checkpoints, config, ranks = assembly.folder.checkpoints, assembly.loaded.resolved, assembly.ranks
    sources = assembly.datasets.items() if ranks.first else ()  # The first rank writes them.
    digests = {where: digest for where, source in sources if (digest := data_digest(source)) is not None}
    return Saver(trainer, checkpoints, keep, data, config, digests=digests, ranks=ranks, every=every)


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
