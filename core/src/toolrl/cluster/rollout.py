"""The rollout workers of a run, from joining the cluster to leaving it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from toolrl.cluster.broadcast import BroadcastCourier
from toolrl.cluster.handover import Courier
from toolrl.cluster.messages import WorkerSpec
from toolrl.cluster.pool import WorkerPool
from toolrl.cluster.ray_workers import STORE_BYTES, RayCluster, RayHandle, joined, own_address, put
from toolrl.cluster.weights import FileCourier, StoreCourier
from toolrl.config.cluster import ClusterConfig
from toolrl.protocols import WeightSource
from toolrl.rollout.source import Oversight


@asynccontextmanager
async def rollout_workers(spec: WorkerSpec, oversight: Oversight, weights: WeightSource) -> AsyncIterator[WorkerPool]:
    """The pool, its workers started with `weights`; in the end they are stopped. Raises ConfigError."""
    config = spec.loaded.config
    settings = config.cluster
    # Two versions of the weights may be needed at a time, and there is to be room for what is being written.
    through_store = settings.weight_transfer == "object_store"
    size = sum(parameter.nbytes for parameter in weights.module().parameters()) if through_store else 0
    cluster = RayCluster(settings, STORE_BYTES + 3 * size)
    await joined(cluster)
    try:
        courier = courier_of(settings, Path(spec.run_dir))

        def spec_of(number: int) -> WorkerSpec:
            return replace(spec, number=number)

        def spawn(number: int) -> RayHandle:
            return cluster.spawn(number, spec_of(number).log_path)

        pool = WorkerPool(
            spawn,
            spec_of,
            courier,
            oversight,
            workers=settings.rollout_workers,
            concurrency=config.rollout.concurrency,
            timeout=settings.worker_timeout,
            restarts=settings.worker_restarts,
            reason_of_wait=cluster.reason_of_wait,
        )
        try:
            await pool.start(weights, weights.version)
            yield pool
        finally:
            await pool.stop()
    finally:
        cluster.leave()


def courier_of(settings: ClusterConfig, run_dir: Path) -> Courier:
    """Of the way that the config names. The cluster was joined."""
    if settings.weight_transfer == "file":
        return FileCourier(run_dir / ".weights")
    if settings.weight_transfer == "broadcast":
        return BroadcastCourier(own_address(), timeout=settings.worker_timeout)
    return StoreCourier(put)
