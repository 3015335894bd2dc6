"""Whether a run's workers fit the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError

_ADD_NODES = "or add nodes by `ray start --address ADDRESS`."


def check_room(config: ClusterConfig, nodes: Sequence[Mapping[str, Any]], own: str = "") -> None:
    """Raises ConfigError where the nodes can't hold the trainer workers, the first one on the node `own`, and the
    rollout workers beside them. What other programs use isn't counted."""
    free = {str(node["NodeID"]): dict(node["Resources"]) for node in nodes}
    if config.trainer_workers:
        _place_trainers(config, free, own)
    wanted = rollout_resources(config)
    room = _placed(free, wanted, config.rollout_workers)
    if room < config.rollout_workers:
        beside = f" beside {config.trainer_workers} trainer workers" if config.trainer_workers else ""
        has = "; ".join(f"{node.get('NodeManagerAddress', 'a node')} has {_amounts(node, wanted)}" for node in nodes)
        raise ConfigError(
            f"cluster.rollout_workers: {config.rollout_workers} workers with {shown(wanted)} each don't fit the Ray "
            f"cluster, which has room for {room}{beside} ({has})",
            hint="Ask for fewer workers, or for less by cluster.worker_cpus, worker_gpus and worker_resources; "
            + _ADD_NODES,
        )


def _place_trainers(config: ClusterConfig, free: dict[str, dict[str, float]], own: str) -> None:
    wanted = trainer_resources(config)
    if not _take(free[own], wanted):
        raise ConfigError(
            f"cluster.trainer_workers: the first one is placed where the command runs, and this node has "
            f"{shown({name: free[own].get(name, 0.0) for name in wanted})} of the {shown(wanted)} that it asks for",
            hint="Start the command on a node that has them, or ask for less by cluster.trainer_cpus and trainer_gpus.",
        )
    placed = 1 + _placed(free, wanted, config.trainer_workers - 1)
    if placed < config.trainer_workers:
        raise ConfigError(
            f"cluster.trainer_workers: {config.trainer_workers} workers with {shown(wanted)} each don't fit the Ray "
            f"cluster, which has room for {placed}",
            hint=f"Ask for fewer, or for less by cluster.trainer_cpus and trainer_gpus; {_ADD_NODES}",
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


def _amounts(node: Mapping[str, Any], names: Mapping[str, float]) -> str:
    return shown({name: node["Resources"].get(name, 0.0) for name in names})


def _placed(free: dict[str, dict[str, float]], wanted: dict[str, float], count: int) -> int:
    """How many of `count` workers the nodes have room for."""
    return next((n for n in range(count) if not any(_take(it, wanted) for it in free.values())), count)


def _take(free: dict[str, float], wanted: Mapping[str, float]) -> bool:
    """Take resources from a node's, where it has them."""
    if any(free.get(name, 0.0) + 1e-9 < amount for name, amount in wanted.items()):
        return False
    for name, amount in wanted.items():
        free[name] -= amount
    return True
