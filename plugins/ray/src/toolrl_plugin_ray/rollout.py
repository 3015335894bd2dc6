"""The rollout workers of a run as Ray actors, from joining the cluster to leaving it.

Ray doesn't restart them: `worker_supervisor` does, as it knows what a dead one was sampling.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from toolrl.building import engine_options
from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError
from toolrl.plugins.registry import load_registry
from toolrl.protocols import WeightSource
from toolrl.rollouts.source import FailurePolicy
from toolrl_plugin_ray.broadcast import WeightBroadcast
from toolrl_plugin_ray.connection import connected, death_reason, own_address
from toolrl_plugin_ray.messages import WorkerSpec
from toolrl_plugin_ray.placement import check_room
from toolrl_plugin_ray.rollout_worker import RolloutWorker
from toolrl_plugin_ray.weights import receivers
from toolrl_plugin_ray.worker_pool import WorkerPool
from toolrl_plugin_ray.worker_supervisor import WorkerLostError
from toolrl_plugin_torch.device import pick_device
from toolrl_plugin_torch.sharding.collective_group import Backend

MOST_CALLS = 100_000
"""Methods of a rollout worker that may be under way at once."""


@asynccontextmanager
async def rollout_workers(
    spec: WorkerSpec, weights: WeightSource, failures: FailurePolicy
) -> AsyncIterator[WorkerPool]:
    """The pool, its workers started with `weights`; on leaving they are stopped. `spec` is the first worker's. Raises
    ConfigError."""
    config = spec.loaded.config
    settings = config.cluster
    options = engine_options(load_registry(), config)
    device = str(pick_device(config.device))

    def spec_of(number: int) -> WorkerSpec:
        return replace(spec, number=number)

    async with connected(settings, lambda: check_room(settings, [node for node in ray.nodes() if node["Alive"]])):
        pool = WorkerPool(
            lambda number: spawn(settings),
            spec_of,
            WeightBroadcast(
                own_address(),
                timeout=settings.worker_timeout,
                receivers=receivers(options),
                backend=backend(settings, device, receivers(options)),
                device=device,
            ),
            failures,
            workers=settings.rollout_workers,
            concurrency=config.rollout.concurrency,
            timeout=settings.worker_timeout,
            restarts=settings.worker_restarts,
        )
        try:
            await pool.start(weights, weights.version)
            yield pool
        finally:
            await pool.stop()


def backend(settings: ClusterConfig, device: str, receiving: int) -> Backend:
    """What weights are sent by, from a trainer on this device to as many processes of each worker's engine. Raises
    ConfigError for nccl where it can't be."""
    possible = device.startswith("cuda") and settings.worker_gpus >= 1 and receiving > 0
    if settings.weight_backend == "nccl" and not possible:
        raise ConfigError(
            f"cluster.weight_backend: nccl needs a trainer on a GPU ({device}), whole GPUs for each worker "
            f"(worker_gpus {settings.worker_gpus:g}) and an engine that receives the weights itself",
            hint="Leave it out, or take the engine vllm and worker_gpus 1 or more.",
        )
    return "nccl" if possible and settings.weight_backend != "gloo" else "gloo"


def spawn(settings: ClusterConfig, worker: type[RolloutWorker] = RolloutWorker) -> ActorHandle:
    """Begin a rollout worker's process; Ray starts it when there are resources."""
    kind = ray.remote(worker).options(
        num_cpus=settings.worker_cpus,
        num_gpus=settings.worker_gpus,
        resources=dict(settings.worker_resources) or None,
        scheduling_strategy="SPREAD",
        max_concurrency=MOST_CALLS,
        max_restarts=0,
        max_task_retries=0,
    )
    return ActorHandle(kind.remote())


class ActorHandle:
    """A rollout worker's process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of its RolloutWorker. Raises WorkerLostError, or what the method raised."""
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, Exception) else error from None
        except RayError as error:
            raise WorkerLostError(death_reason(error)) from None

    def kill(self) -> None:
        """End the process at once; may be called again."""
        with suppress(Exception):
            ray.kill(self._actor, no_restart=True)
