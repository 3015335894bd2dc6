"""A run's trainer workers, from joining the cluster to leaving it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import ray

from toolrl.cluster.ray_trainers import TrainerPlaces
from toolrl.cluster.ray_workers import STORE_BYTES, RayCluster, joined
from toolrl.cluster.trainer_messages import TrainerOrder
from toolrl.cluster.trainers import Telling, TrainerGroup


class Training:
    """What `toolrl train` does where trainer workers train."""

    def __init__(self, order: TrainerOrder, module: str, telling: Telling) -> None:
        """`order` is the first rank's; `module` is what each worker's process runs; `telling`: see TrainerGroup."""
        self._telling = telling
        self._order = order
        self._module = module
        self._group: TrainerGroup | None = None
        self._task: asyncio.Task[int] | None = None

    async def run(self) -> int:
        """To the run's end: the exit status. Raises what ended it."""
        order = self._order
        settings = order.loaded.config.cluster
        self._task = asyncio.current_task()
        cluster = RayCluster(settings, STORE_BYTES + 3 * _model_bytes(order.loaded.config.model.path))
        await joined(cluster)
        try:
            places = await asyncio.to_thread(TrainerPlaces, settings, self._module, Path(order.run_dir))
            try:
                # The first rank joins this cluster, whichever it is.
                config = order.loaded.config
                here = settings.model_copy(update={"address": ray.get_runtime_context().gcs_address})
                loaded = replace(order.loaded, config=config.model_copy(update={"cluster": here}))
                self._group = TrainerGroup(
                    replace(order, loaded=loaded),
                    places.spawn,
                    settings.worker_timeout,
                    settings.trainer_restarts,
                    places.reason_of_wait,
                    telling=self._telling,
                )
                return await self._group.run()
            finally:
                places.close()
        finally:
            cluster.leave()

    def interrupt(self) -> None:
        """End the run in order. Call it on the event loop."""
        if self._group is not None:
            self._group.interrupt()
        elif self._task is not None:
            self._task.cancel()


def _model_bytes(path: str) -> int:
    """About what the model's weights take in 32 bits, as far as its folder says; for one that isn't a folder the object
    store has room for a billion."""
    folder = Path(path)
    if not folder.is_dir():
        return 4 * 10**9
    return 2 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))
