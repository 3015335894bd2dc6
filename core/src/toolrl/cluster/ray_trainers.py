"""Trainer workers as Ray actors: where they are placed, and that they fit.

The first rank is bound to the node of the command, whose file system has the run's folder. A placement group holds the
places of the others, so that a run has all or none, and gets others where a node is lost. The processes that train are
none of Ray's: each actor starts its own, with torch.distributed as under torchrun. Ray Train would supervise, resume
and keep checkpoints in its own way beside ours; the ranks need of a cluster where they are and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from toolrl.cluster.ray_workers import RayHandle
from toolrl.cluster.trainer_host import TrainerHost
from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError

THREADS = 8
"""Methods of a worker that may be under way at once: one waits for news."""


class TrainerPlaces:
    """Where the trainer workers of a run are. This process is part of the cluster."""

    def __init__(self, config: ClusterConfig, module: str, run_dir: Path) -> None:
        """`module` is what their processes run. Raises ConfigError where the cluster has no room for them and for the
        rollout workers."""
        self._config = config
        self._module = module
        self._run_dir = run_dir
        self._own_node = ray.get_runtime_context().get_node_id()
        check_room(config, [node for node in ray.nodes() if node["Alive"]], self._own_node)
        self._group = None
        others = config.trainer_workers - 1
        if others and any(_asked(config).values()):
            self._group = placement_group([dict(_asked(config)) for _ in range(others)], strategy="PACK")

    def spawn(self, rank: int) -> RayHandle:
        """Begin the worker of a rank; Ray starts it when there is room."""
        strategy: Any = "SPREAD"
        if rank == 0:
            strategy = NodeAffinitySchedulingStrategy(self._own_node, soft=False)
        elif self._group is not None:
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank - 1)
        kind = ray.remote(TrainerHost).options(
            num_cpus=self._config.trainer_cpus,
            num_gpus=self._config.trainer_gpus,
            scheduling_strategy=strategy,
            max_concurrency=THREADS,
            max_restarts=0,
            max_task_retries=0,
        )
        worker = kind.remote(self._module, gpus=self._config.trainer_gpus)
        return RayHandle(worker, self._run_dir / "workers" / f"trainer-{rank}.log")

    def reason_of_wait(self) -> str:
        """Why a worker may not have its place yet."""
        with suppress(RayError, OSError):
            free = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
            return f" (it asks for {_shown(_asked(self._config))}; free in the cluster: {_shown(free)})"
        return ""

    def close(self) -> None:
        """Give the places back."""
        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)


def check_room(config: ClusterConfig, nodes: Sequence[Mapping[str, Any]], own: str) -> None:
    """Raises ConfigError where the nodes can't hold the trainer workers, the first on the node `own`, and the rollout
    workers beside them, whoever else is there."""
    free = {str(node["NodeID"]): dict(node["Resources"]) for node in nodes}
    wanted = _asked(config)
    if not _take(free[own], wanted):
        raise ConfigError(
            f"cluster.trainer_workers: the first one is placed where the command runs, and this node has "
            f"{_shown({name: free[own].get(name, 0.0) for name in wanted})} of the {_shown(wanted)} that it asks for",
            hint="Start the command on a node that has them, or ask for less by cluster.trainer_cpus and trainer_gpus.",
        )
    placed = 1
    while placed < config.trainer_workers and any(_take(it, wanted) for it in free.values()):
        placed += 1
    if placed < config.trainer_workers:
        raise ConfigError(
            f"cluster.trainer_workers: {config.trainer_workers} workers with {_shown(wanted)} each don't fit the Ray "
            f"cluster, which has room for {placed}",
            hint="Ask for fewer, or for less by cluster.trainer_cpus and trainer_gpus; or add nodes by `ray start "
            "--address ADDRESS`.",
        )
    sampling = {"CPU": config.worker_cpus, "GPU": config.worker_gpus, **config.worker_resources}
    sampling = {name: amount for name, amount in sampling.items() if amount > 0}
    room = math.inf if not sampling else 0
    while room < config.rollout_workers and any(_take(it, sampling) for it in free.values()):
        room += 1
    if room < config.rollout_workers:
        raise ConfigError(
            f"cluster.rollout_workers: beside {config.trainer_workers} trainer workers with {_shown(wanted)} each "
            f"there is room for {room} rollout workers with {_shown(sampling)} each, of {config.rollout_workers}",
            hint="Ask for fewer workers, or for less by cluster.trainer_cpus and worker_cpus; or add nodes.",
        )


def _take(free: dict[str, float], wanted: Mapping[str, float]) -> bool:
    """Take resources from a node's, where it has them."""
    if any(free.get(name, 0.0) + 1e-9 < amount for name, amount in wanted.items()):
        return False
    for name, amount in wanted.items():
        free[name] -= amount
    return True


def _asked(config: ClusterConfig) -> dict[str, float]:
    wanted = {"CPU": config.trainer_cpus, "GPU": float(config.trainer_gpus)}
    return {name: amount for name, amount in wanted.items() if amount > 0}


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in amounts.items()) or "nothing"
