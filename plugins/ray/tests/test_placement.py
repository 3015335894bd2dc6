"""What keeps workers from being placed is reported before a run begins."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

pytest.importorskip("ray")

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError
from toolrl_plugin_ray.connection import connected
from toolrl_plugin_ray.placement import check_room


def nodes(*amounts: dict[str, float]) -> list[dict[str, Any]]:
    return [{"NodeID": f"n{number}", "Resources": resources} for number, resources in enumerate(amounts)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rollout_workers": 6}, None),
        ({"rollout_workers": 7}, "7 workers with 1 CPU each don't fit the Ray cluster, which has room for 6"),
        ({"rollout_workers": 100, "worker_cpus": 0}, None),
        ({"rollout_workers": 3, "worker_cpus": 2}, None),
        ({"rollout_workers": 4, "worker_cpus": 1.5}, "room for 3"),
        ({"rollout_workers": 4, "worker_gpus": 0.5}, None),
        ({"rollout_workers": 5, "worker_gpus": 0.5}, "5 workers with 1 CPU, 0.5 GPU each don't fit"),
        ({"rollout_workers": 2, "worker_resources": {"sandbox": 1}}, None),
        ({"rollout_workers": 3, "worker_resources": {"sandbox": 1}}, "room for 2"),
        ({"trainer_workers": 6}, None),
        ({"trainer_workers": 7}, "7 workers with 1 CPU each don't fit the Ray cluster, which has room for 6"),
        ({"trainer_workers": 50, "trainer_cpus": 0}, None),
        ({"trainer_workers": 1, "trainer_cpus": 5}, "this node has 4 CPU of the 5 CPU that it asks for"),
        ({"trainer_workers": 1, "trainer_gpus": 3}, "this node has 4 CPU, 2 GPU of the 1 CPU, 3 GPU"),
        ({"trainer_workers": 2, "rollout_workers": 4}, None),
        ({"trainer_workers": 2, "rollout_workers": 5}, "room for 4 beside 2 trainer workers"),
    ],
)
def test_workers_must_fit_the_nodes(settings: dict[str, Any], problem: str | None) -> None:
    config, cluster = ClusterConfig(**settings), nodes({"CPU": 4, "GPU": 2}, {"CPU": 2, "sandbox": 2}, {})
    if problem is None:
        check_room(config, cluster, "n0")
    else:
        with pytest.raises(ConfigError, match=problem):
            check_room(config, cluster, "n0")


def test_an_address_where_nothing_listens_is_reported_at_once() -> None:
    async def main(address: str) -> None:
        async with connected(ClusterConfig(rollout_workers=1, address=address), lambda: None):
            pass

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"the Ray cluster '{address}' can't be joined: .*refused"):
            asyncio.run(main(address))
