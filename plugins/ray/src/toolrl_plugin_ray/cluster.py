"""The cluster `ray`: rollout workers, trainer workers and limits on a Ray cluster that runs, or that a run starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from toolrl.config.load import LoadedConfig
from toolrl.protocols import BuildContext, WeightSource
from toolrl.rollouts.source import FailurePolicy, RolloutWorkers
from toolrl_plugin_ray.limits import RayLimits
from toolrl_plugin_ray.messages import RankOrder, WorkerSpec


class RayCluster:
    """A `toolrl.protocols.Cluster`."""

    def __init__(self, options: None, context: BuildContext) -> None:
        """As a component's target; its settings come with the config."""

    def rollout_workers(
        self,
        loaded: LoadedConfig,
        source: str,
        dtype: str,
        run_dir: Path,
        weights: WeightSource,
        failures: FailurePolicy,
    ) -> AbstractAsyncContextManager[RolloutWorkers]:
        """See Cluster."""
        from toolrl_plugin_ray.rollout import rollout_workers  # Limits alone need no torch.

        source = str(Path(source).absolute()) if Path(source).is_dir() else source
        device = "cuda" if loaded.config.cluster.worker_gpus else "cpu"
        spec = WorkerSpec(0, loaded, source, dtype, device, str(Path.cwd()), str(run_dir))
        return rollout_workers(spec, weights, failures)

    async def train(self, loaded: LoadedConfig, *, resume: bool, overwrite: bool, json: bool) -> int:
        """See Cluster."""
        from toolrl_plugin_ray.trainer_workers import train

        here, run = os.getcwd(), loaded.config.run  # noqa: PTH109
        order = RankOrder(loaded, here, resume, overwrite, json)
        return await train(order, Path(here) / run.dir / run.name)

    def limits(self, restarted: Callable[[str], None]) -> RayLimits:
        """See Cluster."""
        return RayLimits(restarted)
