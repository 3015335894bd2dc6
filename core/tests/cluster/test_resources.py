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
