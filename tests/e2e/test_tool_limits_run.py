"""A policy from the config to the metrics: what a run says of its limits, and what it refuses before it begins."""

from __future__ import annotations

from typing import Any

import pytest

POLICY = {
    "concurrency": 2,
    "rate": {"per_second": 1000, "burst": 50},
    "breaker": {},
    "retry": {},
    "cache": 100,
    "max_calls_per_episode": 2,
}


def test_a_policys_metrics_are_in_the_run(own_place: Any) -> None:
    environment = {"tools": [{"use": "calculator", "policy": POLICY}], "rewards": ["exact"]}
    changes = {"model": {"path": "runs/warm"}, "environments": {"default": environment}, "run": {"name": "limited"}}
    done = own_place.toolrl("rollout", own_place.config(changes), "--episodes", "16", "--json")
    assert done.returncode == 0, done.stderr
    metrics = done.json()
    found = {name.rpartition("/")[2] for name in _keys(metrics) if "tool/calculator/policy/" in name}
    assert found == {"retries", "queue_seconds", "cache_hits"}


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values())) if value else set()
    return set().union(*map(_keys, value)) if isinstance(value, list) and value else set()


def test_a_clusters_limit_without_a_cluster_plugin() -> None:
    from toolrl.config.model import Config
    from toolrl.errors import ConfigError
    from toolrl.plugins.registry import Registry
    from toolrl.preflight import build_cluster

    config = Config.model_validate({"model": {"path": "m"}, "environments": {"default": {}}})
    with pytest.raises(ConfigError, match="policy.limit_scope: cluster: there is no cluster named 'ray'") as caught:
        build_cluster(Registry([]), config, "policy.limit_scope: cluster")
    assert "pip install toolrl-plugin-ray" in str(caught.value.hint)
