"""The rollout workers and trainer workers that a config asks for. Ray is imported here and not before, so that a run
without them needs none."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from toolrl.cluster.messages import WorkerSpec
from toolrl.cluster.trainer_messages import TrainerOrder
from toolrl.config.load import LoadedConfig
from toolrl.errors import ConfigError
from toolrl.protocols import WeightSource
from toolrl.rollout.source import Oversight

if TYPE_CHECKING:
    from toolrl.cluster.pool import WorkerPool
    from toolrl.cluster.trainers import Telling
    from toolrl.cluster.training import Training
    from toolrl.protocols import TrainedModel


def trainers_of(
    loaded: LoadedConfig, module: str, telling: Telling, *, resume: bool, overwrite: bool, json: bool
) -> Training:
    """What trains on trainer workers; `module` is what their processes run, `telling` tells what they do. Raises
    ConfigError where Ray isn't installed."""
    config = loaded.config
    try:
        from toolrl.cluster.training import Training
    except ModuleNotFoundError as error:
        raise _without_ray(error, "trainer_workers", config.cluster.trainer_workers) from error
    order = TrainerOrder(
        rank=0,
        size=config.cluster.trainer_workers,
        loaded=loaded,
        cwd=str(Path.cwd()),
        run_dir=str((Path(config.run.dir) / config.run.name).absolute()),
        resume=resume,
        overwrite=overwrite,
        json=json,
    )
    return Training(order, module, telling)


def workers_of(
    loaded: LoadedConfig, policy: TrainedModel, source: str, run_dir: Path, oversight: Oversight, weights: WeightSource
) -> AbstractAsyncContextManager[WorkerPool]:
    """Entering it starts the workers, with `weights`; `source` is where `policy` was loaded from. Raises ConfigError
    where Ray isn't installed, can't be reached, or has no room."""
    config = loaded.config
    try:
        from toolrl.cluster.rollout import rollout_workers
    except ModuleNotFoundError as error:
        raise _without_ray(error, "rollout_workers", config.cluster.rollout_workers) from error
    spec = WorkerSpec(
        0,
        loaded,
        build="toolrl.replica:replica",
        source=str(Path(source).absolute()) if Path(source).is_dir() else source,
        dtype=str(policy.dtype).removeprefix("torch."),
        device="cuda" if config.cluster.worker_gpus else "cpu",
        cwd=str(Path.cwd()),
        run_dir=str(run_dir),
    )
    return rollout_workers(spec, oversight, weights)


def _without_ray(error: ModuleNotFoundError, field: str, count: int) -> Exception:
    if error.name is None or error.name.partition(".")[0] != "ray":
        return error
    return ConfigError(
        f"cluster.{field}: {count} workers need ray, which isn't installed",
        hint=f"pip install 'toolrl[cluster]', or set cluster.{field} to 0.",
    )
