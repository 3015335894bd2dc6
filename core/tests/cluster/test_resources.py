"""What keeps workers from being placed is said before a run begins: no Ray, nobody at the address, too little room."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from toolrl.cluster.start import workers_of

    for name in [it for it in sys.modules if it.split(".")[0] == "ray" or it.startswith("toolrl.cluster.r")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    loaded: Any = SimpleNamespace(config=SimpleNamespace(cluster=ClusterConfig(rollout_workers=2)))
    nothing: Any = None
    with pytest.raises(ConfigError, match="2 workers need ray, which isn't installed") as caught:
        workers_of(loaded, nothing, "m", nothing, nothing, nothing)
    assert "toolrl[cluster]" in str(caught.value.hint)


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": name, "Resources": {"memory": 1e9, **resources}}


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"rollout_workers": 6}, True),
        ({"rollout_workers": 7}, False),
        ({"rollout_workers": 100, "worker_cpus": 0}, True),
        ({"rollout_workers": 3, "worker_cpus": 2}, True),
        ({"rollout_workers": 4, "worker_cpus": 1.5}, False),
        ({"rollout_workers": 4, "worker_gpus": 0.5}, True),
        ({"rollout_workers": 5, "worker_gpus": 0.5}, False),
        ({"rollout_workers": 2, "worker_resources": {"sandbox": 1}}, True),
        ({"rollout_workers": 3, "worker_resources": {"sandbox": 1}}, False),
        ({"rollout_workers": 1, "worker_resources": {"moon": 1}}, False),
    ],
)
def test_workers_must_fit_the_nodes(settings: dict[str, Any], fits: bool) -> None:
    pytest.importorskip("ray")
    from toolrl.cluster.ray_workers import check_resources

    nodes = [node("a", CPU=4, GPU=2), node("b", CPU=2, sandbox=2), node("c")]
    config = ClusterConfig(**settings)
    if fits:
        check_resources(config, nodes)
        return
    with pytest.raises(ConfigError, match=f"{config.rollout_workers} workers with .* don't fit the Ray cluster, which"):
        check_resources(config, nodes)


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    pytest.importorskip("ray")
    from toolrl.cluster.ray_workers import RayCluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        cluster = RayCluster(ClusterConfig(rollout_workers=1, address=address), 0)
        with pytest.raises(ConfigError, match=f"the Ray cluster '{address}' can't be joined: .*refused"):
            asyncio.run(asyncio.to_thread(cluster.join))


def places(*amounts: dict[str, float]) -> list[dict[str, Any]]:
    return [{"NodeID": f"n{number}", "Resources": resources} for number, resources in enumerate(amounts)]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trainer_workers": 2}, None),
        ({"trainer_workers": 5}, None),
        ({"trainer_workers": 6}, "6 workers with 1 CPU each don't fit the Ray cluster, which has room for 5"),
        ({"trainer_workers": 50, "trainer_cpus": 0}, None),
        ({"trainer_workers": 1, "trainer_cpus": 2}, "this node has 1 CPU of the 2 CPU that it asks for"),
        ({"trainer_workers": 1, "trainer_gpus": 1}, "this node has 1 CPU, 0 GPU of the 1 CPU, 1 GPU"),
        ({"trainer_workers": 2, "rollout_workers": 3}, None),
        ({"trainer_workers": 2, "rollout_workers": 4}, "room for 3 rollout workers with 1 CPU each, of 4"),
        ({"trainer_workers": 2, "rollout_workers": 2, "worker_gpus": 1}, "room for 1 rollout workers"),
    ],
)
def test_trainer_workers_fit_beside_rollout_workers(settings: dict[str, Any], told: str | None) -> None:
    pytest.importorskip("ray")
    from toolrl.cluster.ray_trainers import check_room

    nodes = places({"CPU": 1}, {"CPU": 2, "GPU": 1}, {"CPU": 2})
    config = ClusterConfig(**settings)
    if told is None:
        check_room(config, nodes, "n0")
        return
    with pytest.raises(ConfigError, match=told):
        check_room(config, nodes, "n0")
