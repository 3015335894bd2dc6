"""Puts a run together from a config: the one place where components are built and joined.

`assemble` builds what every command needs (policy, environments, engine, runner, run folder, events), in an order in
which each thing only needs what stands before it, and takes it down again in reverse. What the commands do with it
stands below.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from toolrl.building import build_trainer, engine_options
from toolrl.config.data import DataUses
from toolrl.config.frame import ComponentUse
from toolrl.config.load import LoadedConfig
from toolrl.config.logs import masked_logs
from toolrl.config.model import Config
from toolrl.config.remarks import remarks
from toolrl.early_parts import check_before_load
from toolrl.errors import ConfigError, ToolrlError
from toolrl.loop.checkpoints import MANIFEST, find_checkpoint, list_checkpoints, verify
from toolrl.loop.data import EndlessOrder, left_out
from toolrl.loop.evaluate import Evaluator, ablate
from toolrl.loop.metrics import episode_metrics
from toolrl.loop.mixture import endless, parts_of
from toolrl.loop.ranks import ONE, Ranks
from toolrl.loop.unused_names import UnusedNames
from toolrl.plugins.events import Events
from toolrl.plugins.registry import Registry
from toolrl.preflight import build_cluster, build_dataset, run_directory
from toolrl.protocols import (
    RolloutEngine,
    StepReport,
    TaskSource,
    TrainedModel,
    TrainerBackend,
    WeightSource,
)
from toolrl.rollouts.activity import Activity
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.source import FailurePolicy, SamplesRounds, TakesWeights
from toolrl.run_builder import RunBuilder
from toolrl.runs.files import FolderLock
from toolrl.runs.folder import RunFolder, run_and_checkpoint
from toolrl.runs.log import RunLog
from toolrl.runs.status import RunPhase, status_file
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.restart_counts import RestartCounts
from toolrl.training_protocols import ChecksMemory
from toolrl.types import Task

_log = logging.getLogger(__name__)


@dataclass
class Assembly:
    """A run whose parts are built and started."""

    loaded: LoadedConfig
    registry: Registry
    backend: TrainerBackend
    """What trains; it made `model`."""
    model: TrainedModel
    environments: dict[str, Environment]
    """Empty where workers sample: each has its own."""
    engine: TakesWeights
    runner: SamplesRounds
    """Of several ranks all call it together."""
    limits: Limits
    folder: RunFolder
    events: Events
    build: Callable[..., Any]
    """Makes a component: of a kind, from its use, for a place in the config."""
    resume: bool = False
    """Whether to go on from the run's last checkpoint."""
    datasets: Mapping[str, TaskSource] = field(default_factory=dict)
    """Those that were built before the model was loaded, by their places in the config."""
    worker_metrics: Callable[[], Mapping[str, float]] = dict
    """Metrics of the workers, since it was last asked."""
    phase: RunPhase = field(default_factory=RunPhase)
    """For `toolrl status`."""
    ranks: Ranks = ONE
    """The processes that train together."""
    model_source: str = ""
    """What `model` was loaded from: a folder, a run's checkpoint or a name on a hub."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    def dataset(self, which: str) -> TaskSource:
        """`train` or `eval` of the config's data. Raises ConfigError where it names none."""
        use: DataUses = getattr(self.config.data, which)
        return self.tasks(f"data.{which}", use)

    def tasks(self, where: str, use: DataUses) -> TaskSource:
        """The data set at a place in the config, or the mixture of a list of them. Raises ConfigError for none."""
        if where in self.datasets:
            return self.datasets[where]
        return build_dataset(self.registry, self.config, self.folder.directory, where, use)

    def built(self, kind: str, where: str, use: ComponentUse | None) -> Any:
        """A component that only one command needs, or None where the config names none."""
        return None if use is None else self.build(kind, use, where)

    def order(self) -> EndlessOrder[Task]:
        """The training tasks in the run's order."""
        return endless(
            self.dataset("train"), seed=self.config.seed, shuffle=self.config.data.shuffle, where="data.train"
        )

    def evaluator(self) -> Evaluator | None:
        """Evaluates on data.eval; None where the config names none."""
        if self.config.data.eval is None:
            return None
        return Evaluator(self.runner, self.dataset("eval"), self.limits, self.config.evaluation, self.phase)


@asynccontextmanager
async def assemble(
    loaded: LoadedConfig,
    registry: Registry,
    *,
    total_steps: int,
    data: Mapping[str, bool] | None = None,
    resume: bool | None = False,
    overwrite: bool = False,
    observers: Sequence[ComponentUse] | None = None,
    workers: bool = False,
    ranks: Ranks = ONE,
    kind: str | None = None,
    lock: FolderLock | None = None,
) -> AsyncIterator[Assembly]:
    """Build and start a run of `total_steps` training steps, 0 for a command that makes none. `resume` continues
    from its last checkpoint (None for a command that can't), `overwrite` deletes a run of its name once all is started;
    `observers` replace the config's. With `workers` the config's rollout workers sample, if it asks for any. The first
    of several `ranks` writes the run folder and notifies observers. `kind` is the run's, as in `runs.folder.KINDS`;
    `lock` is that of its reserved name.

    `data` names the data sets that the command needs and whether each has to be there. They are built before a model is
    loaded. At the end everything is stopped in reverse order; last, observers are notified of the end.
    """
    async with AsyncExitStack() as stack:
        log = stack.enter_context(_run_log(loaded, ranks))
        config = loaded.config
        backend = build_trainer(registry, config)
        backend.prepare(ranks.device_name)
        directory = run_directory(config)
        source = model_source(config.model.path)
        trains = total_steps > 0 and "data.train" in (data or {})  # No other command samples while it trains.
        elsewhere = workers and config.cluster.rollout_workers
        datasets = _check_before_load(loaded, registry, data or {}, ranks, trains=trains, elsewhere=bool(elsewhere))
        if trains and isinstance(backend, ChecksMemory):
            backend.check_memory(source, engine_options(registry, config), ranks.size)
        folder = _run_folder(
            directory, loaded, registry, ranks, total_steps, resume=resume, overwrite=overwrite, kind=kind, lock=lock
        )
        if ranks.first:
            backend.clean(folder.directory)
            if not folder.replaces:
                log.open(folder.directory)
        stack.callback(folder.close)
        model = backend.load_model(source, ranks=ranks)
        builder = RunBuilder(loaded, registry, model, folder.directory, ranks)
        limits = builder.limits()
        events = builder.events(folder, config.observers if observers is None else observers)
        if trains and ranks.first:
            events.add("unused names", UnusedNames(config))
        events.extra_metrics = left_out(_parts(datasets))
        stack.push_async_exit(_end_of_run(events, loaded.hide))
        phase = RunPhase(events.phase_start)
        phase.begin("starting the rollout workers" if elsewhere else "starting the engine and the tools")
        weights = model.weights(0, folder.directory)
        environments: dict[str, Environment] = {}
        if not elsewhere:
            engine = builder.engine(weights, overlap=trains and config.rollout.max_staleness > 0)
            environments = builder.environments()
            starting = _sampler_here(builder, environments, engine, events)
        else:
            assert weights is not None, "a trainer without weights rejects cluster.rollout_workers"
            starting = _sampler_elsewhere(loaded, registry, source, model, folder, weights, events, ranks)
        sampler = await stack.enter_async_context(starting)
        if folder.replaces:
            folder.begin()
            log.open(folder.directory)
        if ranks.first:
            await stack.enter_async_context(status_file(folder.directory, lambda: _facts(phase) | sampler.status()))
        parts = (loaded, registry, backend, model, environments, sampler.engine, sampler.runner, limits, folder, events)
        yield Assembly(*parts, builder.build, bool(resume), datasets, sampler.worker_metrics, phase, ranks, source)


@contextmanager
def _run_log(loaded: LoadedConfig, ranks: Ranks) -> Iterator[RunLog]:
    """The log of a run, which the first rank writes once it is opened in the run's folder."""
    log = RunLog(loaded.hide)
    with masked_logs(loaded.hide, log.add if ranks.first else None):
        log.add(logging.INFO, "toolrl", f"the run starts in process {os.getpid()} on {platform.node()}")
        try:
            yield log
            log.add(logging.INFO, "toolrl", "the run finished")
        except BaseException as error:
            whole = isinstance(error, Exception) and not isinstance(error, ToolrlError)
            said = "".join(traceback.format_exception(error)) if whole else f"{type(error).__name__}: {error}"
            log.add(logging.ERROR if isinstance(error, Exception) else logging.INFO, "toolrl", f"the run ended: {said}")
            raise
        finally:
            log.close()


def _check_before_load(
    loaded: LoadedConfig, registry: Registry, data: Mapping[str, bool], ranks: Ranks, *, trains: bool, elsewhere: bool
) -> dict[str, TaskSource]:
    """Build the data sets, and log what is noteworthy about the run. Raises ToolrlError for mistakes that are found
    without the model. Workers `elsewhere` check their own tools and rewards."""
    parts = ranks.first and not elsewhere
    datasets, notes = check_before_load(loaded, registry, data, parts=parts, rows=ranks.first)
    for note in (*(remarks(loaded.config, registry) if trains else ()), *notes) if ranks.first else ():
        _log.warning("%s", note)
    return datasets


def _parts(datasets: Mapping[str, TaskSource]) -> list[TaskSource]:
    """The data sets, a mixture as its parts."""
    return [part for tasks in datasets.values() for part in parts_of(tasks)]


def _run_folder(
    directory: Path, loaded: LoadedConfig, registry: Registry, ranks: Ranks, total_steps: int, **begin: Any
) -> RunFolder:
    """The run's folder, which the first rank begins."""
    if not ranks.first:
        return RunFolder(directory.absolute(), loaded.resolved, total_steps)
    plugins = {plugin.name: plugin.version for plugin in registry.plugins}
    return RunFolder.create(directory, loaded.resolved, plugins=plugins, total_steps=total_steps, **begin)


def _facts(phase: RunPhase) -> dict[str, Any]:
    """What the run is busy with, and how often its ranks were started again: torchrun and trainer workers set that."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    return {"doing": phase.name, "doing_seconds": phase.seconds, "rank_restarts": restarts}


@dataclass
class _Sampler:
    """What samples episodes."""

    engine: TakesWeights
    runner: SamplesRounds
    worker_metrics: Callable[[], Mapping[str, float]] = dict
    """Metrics since it was last asked."""
    status: Callable[[], dict[str, Any]] = dict
    """For `toolrl status`."""


@asynccontextmanager
async def _sampler_here(
    builder: RunBuilder, environments: Mapping[str, Environment], engine: RolloutEngine, events: Events
) -> AsyncIterator[_Sampler]:
    """This process samples."""
    runner = builder.runner(engine, environments, events.episode_end)
    status = partial(_status_here, runner.activity, builder.endpoints, builder.restarts)
    async with sampling(builder, environments, engine):
        yield _Sampler(engine, runner, builder.restarts.metrics, status)


@asynccontextmanager
async def _sampler_elsewhere(
    loaded: LoadedConfig,
    registry: Registry,
    source: str,
    model: TrainedModel,
    folder: RunFolder,
    weights: WeightSource,
    events: Events,
    ranks: Ranks,
) -> AsyncIterator[_Sampler]:
    """The cluster's rollout workers sample; of several ranks the first one leads them."""
    if not ranks.first:
        await asyncio.to_thread(weights.follow)
        rollout = ranks.rollout(None)
        yield _Sampler(rollout, rollout)
        return
    config = loaded.config
    failures = FailurePolicy(config.rollout.max_error_rate, events.episode_end)
    cluster = build_cluster(registry, config, "cluster.rollout_workers")
    dtype = str(model.dtype).removeprefix("torch.")
    weights.lead()
    async with cluster.rollout_workers(loaded, source, dtype, folder.directory, weights, failures) as pool:
        weights.release()
        rollout = ranks.rollout(pool)
        yield _Sampler(rollout, rollout, pool.metrics, pool.status)


def _status_here(activity: Activity, endpoints: Endpoints, restarts: RestartCounts) -> dict[str, Any]:
    """The status of this process, in the form of a worker's."""
    facts = {"worker": "here", "state": "ready", "pid": os.getpid(), "node": platform.node()}
    facts |= {**activity.status(), "breakers": endpoints.states()}
    return {"restarted": restarts.totals(), "workers": [facts]}


@asynccontextmanager
async def sampling(
    builder: RunBuilder, environments: Mapping[str, Environment], engine: RolloutEngine
) -> AsyncIterator[None]:
    """Start tools, rewards and engine; stop them in the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(builder.endpoints.close)
        for environment in environments.values():
            stack.push_async_callback(environment.stop)
            await environment.start()
        stack.push_async_callback(engine.stop)
        await engine.start()
        yield


def _end_of_run(events: Events, hide: Callable[[str], str]) -> Any:
    async def end(kind: Any, error: BaseException | None, trace: Any) -> bool:
        _hide_in(error, hide)
        # A cancellation reached us through Ctrl-C or SIGTERM; observers know it by that name.
        events.run_end(KeyboardInterrupt() if isinstance(error, asyncio.CancelledError) else error)
        return False

    return end


def _hide_in(error: BaseException | None, hide: Callable[[str], str]) -> None:
    """Take secrets out of an error's message: observers print it."""
    if error is None:
        return
    error.args = tuple(hide(part) if isinstance(part, str) else part for part in error.args)
    if isinstance(error, ToolrlError):
        error.message = hide(error.message)
        error.where, error.hint = (text and hide(text) for text in (error.where, error.hint))
    if isinstance(error, ConfigError):
        error.problems = [hide(problem) for problem in error.problems]


def model_source(path: str, where: str | None = "model.path") -> str:
    """Where to load the model from: a run folder stands for its last checkpoint, `RUN:best` and `RUN:30` for another.
    `where` is the path's place in the config. Raises ConfigError, CheckpointError."""
    found = run_and_checkpoint(path)
    if found is None:
        if (Path(path) / MANIFEST).is_file():  # a checkpoint's own folder
            verify(Path(path))
        return path
    run, name = found
    if not list_checkpoints(run / "checkpoints"):
        hint = "`toolrl train` and `sft` write one at the end, and in between as `save_every` says."
        raise ConfigError(f"the run {str(run)!r} has no checkpoint", where=where, hint=hint)
    return str(find_checkpoint(run / "checkpoints", name))


# What the commands do with an assembled run.


async def train(assembly: Assembly) -> None:
    """The trainer's reinforcement learning from the run's last checkpoint, or from the start, to trainer.steps."""
    with assembly.ranks.explaining():
        await assembly.backend.train(assembly)


async def evaluate(assembly: Assembly, conditions: Sequence[str] = (), step: int = 0) -> dict[str, Any]:
    """One evaluation on data.eval, and one under each condition of an ablation: their metrics. With the `step` of a
    run's checkpoint the seeds are those of the run's own evaluation at that step, so the metrics are equal."""
    evaluator, uses = assembly.evaluator(), assembly.config.environments
    assert evaluator is not None, "assemble() refuses a config without data.eval"
    assembly.events.run_start()
    if conditions:
        having = {name: it for name, it in assembly.environments.items() if uses[name].tools}
        metrics = await ablate(evaluator, having, conditions, assembly.config.seed, step)
    else:
        metrics = await evaluator.run(step)
    assembly.events.step_end(StepReport(step, "eval", metrics))
    return dict(metrics)


async def sample(assembly: Assembly, tasks: int, episodes: int) -> dict[str, Any]:
    """`episodes` episodes of each of the first training tasks: their metrics."""
    assembly.events.run_start()
    assembly.phase.begin("sampling", tasks * episodes)
    groups = await assembly.runner.run(assembly.order().take(0, tasks), episodes, assembly.limits, round_id="rollout")
    metrics = episode_metrics(groups)
    assembly.events.step_end(StepReport(0, "rollout", metrics))
    return dict(metrics)
