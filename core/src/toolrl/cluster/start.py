"""The rollout workers that a config asks for. Ray is imported here and not before, so that a run without them needs
none."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from toolrl.cluster.messages import WorkerSpec
from toolrl.config.load import LoadedConfig
from toolrl.errors import ConfigError
from toolrl.protocols import WeightSource
from toolrl.rollout.source import Oversight
from toolrl.train.policy import Policy

if TYPE_CHECKING:
    from toolrl.cluster.pool import WorkerPool


def workers_of(
    loaded: LoadedConfig, policy: Policy, source: str, run_dir: Path, oversight: Oversight, weights: WeightSource
) -> AbstractAsyncContextManager[WorkerPool]:
    """Entering it starts the workers, with `weights`; `source` is where `policy` was loaded from. Raises ConfigError
    where Ray isn't installed, can't be reached, or has no room."""
    config = loaded.config
    try:
        from toolrl.cluster.rollout import rollout_workers
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError(
            f"cluster.rollout_workers: {config.cluster.rollout_workers} workers need ray, which isn't installed",
            hint="pip install 'toolrl[cluster]', or set cluster.rollout_workers to 0.",
        ) from error
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
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    return rollout_workers(spec, oversight, weights, min(len(policy.tokenizer), vocabulary), policy.max_positions)
