"""Registers the cluster `ray`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Cluster


@hookimpl
def toolrl_clusters() -> Iterable[Component[Cluster]]:
    """Ray, on this machine or on many."""
    yield Component(
        "ray",
        "toolrl_plugin_ray.cluster:RayCluster",
        summary="Rollout workers, trainer workers and cluster-wide limits on Ray.",
    )
