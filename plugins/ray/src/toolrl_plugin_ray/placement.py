"""Whether a run's workers fit the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError


def check_room(config: ClusterConfig, nodes: Sequence[Mapping[str, Any]], own: str = "") -> None:
    """Raises ConfigError where the nodes can't hold the trainer workers, the first one on the node `own`, and the
    rollout workers beside them. What other programs use isn't counted."""
    free = {str(node["NodeID"]): dict(node["Resources"]) for node in nodes}
    trainers, wanted = config.trainer_workers, trainer_resources(config)
    if trainers and not _take(free[own], wanted):
        raise ConfigError(
            f"cluster.trainer_workers: the first one is placed where the command runs, and this node has "
            f"{shown({name: free[own].get(name, 0.0) for name in wanted})} of the {shown(wanted)} that it asks for",
            hint="Start the command on a node that has them, or ask for less by cluster.trainer_cpus and trainer_gpus.",
        )
    beside = f" beside {trainers} trainer workers" if trainers else ""
    workers = config.rollout_workers, rollout_resources(config)
    for option, (count, each), room, less, others in (
        ("trainer_workers", (trainers, wanted), min(trainers, 1), "trainer_cpus and trainer_gpus", ""),
        ("rollout_workers", workers, 0, "worker_cpus, worker_gpus and worker_resources", beside),
    ):
        while room < count and any(_take(it, each) for it in free.values()):
            room += 1
        if room < count:
            raise ConfigError(
                f"cluster.{option}: {count} workers with {shown(each)} each don't fit the Ray cluster, which has "
                f"room for {room}{others}",
                hint=f"Ask for fewer workers, or for less by cluster.{less}; or add nodes by "
                "`ray start --address ADDRESS`.",
            )


def trainer_resources(config: ClusterConfig) -> dict[str, float]:
    """What each trainer worker asks for."""
    return _wanted({"CPU": config.trainer_cpus, "GPU": float(config.trainer_gpus)})


def rollout_resources(config: ClusterConfig) -> dict[str, float]:
    """What each rollout worker asks for."""
    return _wanted({"CPU": config.worker_cpus, "GPU": config.worker_gpus, **config.worker_resources})


def shown(amounts: Mapping[str, float]) -> str:
    """Resources in a message: `1 CPU, 2 GPU`."""
    return ", ".join(f"{value:g} {name}" for name, value in amounts.items()) or "nothing"


def _wanted(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _take(free: dict[str, float], wanted: Mapping[str, float]) -> bool:
    """Take resources from a node's, where it has them."""
    if any(free.get(name, 0.0) + 1e-9 < amount for name, amount in wanted.items()):
        return False
    for name, amount in wanted.items():
        free[name] -= amount
    return True
