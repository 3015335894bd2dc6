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


def with_tools(name: str, *environments: dict[str, Any]) -> dict[str, Any]:
    tools = {f"env{number}": {"tools": [{"use": "calculator", "policy": policy}], "rewards": ["exact"]}
             for number, policy in enumerate(environments)}  # fmt: skip
    return {"environments": {"default": None, **tools}, "run": {"name": name}}


def test_a_policys_metrics_are_in_the_run(own_place: Any) -> None:
    changes = {**with_tools("limited", POLICY), "model": {"path": "runs/warm"}}
    done = own_place.toolrl("rollout", own_place.config(changes), "--episodes", "16", "--json")
    assert done.returncode == 0, done.stderr
    metrics = done.json()
    found = {name.rpartition("/")[2] for name in _keys(metrics) if "tool/calculator/policy/" in name}
    assert found == {"retries", "queue_seconds", "cache_hits"}


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values())) if value else set()
    return set().union(*map(_keys, value)) if isinstance(value, list) and value else set()


def test_environments_that_disagree_are_told_before_the_first_episode(own_place: Any) -> None:
    changes = {**with_tools("torn", {"concurrency": 2}, {"concurrency": 3}), "model": {"path": "runs/warm"}}
    done = own_place.toolrl("rollout", own_place.config(changes), "--episodes", "4", "--json")
    assert done.returncode == 1
    error = done.json()["error"]
    assert error["type"] == "ConfigError"
    assert error["message"] == (
        "the limit 'calculator' is in use with concurrency 2 and lease 30 s, and another tool asks for concurrency 3 "
        "and lease 30 s"
    )


def test_a_clusters_limit_without_a_cluster_plugin() -> None:
    from toolrl.config.model import Config
    from toolrl.errors import ConfigError
    from toolrl.plugins.registry import Registry
    from toolrl.preflight import build_cluster

    config = Config.model_validate({"model": {"path": "m"}, "environments": {"default": {}}})
    with pytest.raises(ConfigError, match="policy.limit_scope: cluster: there is no cluster named 'ray'") as caught:
        build_cluster(Registry([]), config, "policy.limit_scope: cluster")
    assert "pip install toolrl-plugin-ray" in str(caught.value.hint)
