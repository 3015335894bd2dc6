"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

SETTINGS = {
    "RAY_gcs_server_request_timeout_seconds": "240",  # A busy machine takes long to start three nodes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_AUTH_MODE": "disabled",
}
STORE = 100 * 2**20
"""Bytes of each node's object store."""


@contextmanager
def _ray_cluster(cpus: Sequence[int]) -> Iterator[Any]:
    """Nodes with so many CPUs, the first one the head. Nothing is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, os.environ.get(name, value))
        patch.setenv("OMP_NUM_THREADS", "1")
        node = {"include_log_monitor": False, "object_store_memory": STORE}
        made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": cpus[0], "include_dashboard": False})
        try:
            for count in cpus[1:]:
                made.add_node(**node, num_cpus=count)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture(scope="session")
def ray_cluster() -> Any:
    """`with ray_cluster(cpus) as cluster`: nodes with so many CPUs, the first one the head."""
    return _ray_cluster
