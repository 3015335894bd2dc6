"""Rollout workers on a real Ray cluster of three nodes: the same run as in one process, weights, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

import ray

WORKERS = {"rollout_workers": 2, "worker_cpus": 1}


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> Iterator[Any]:
    """Three nodes, two of them with a CPU."""
    with ray_cluster([0, 1, 1]) as made:
        yield made


def changes(made: Any, name: str, **sections: Any) -> dict[str, Any]:
    """A config with two workers on the cluster, trained from the run `warm`."""
    own = sections.pop("cluster", {})
    section = {**WORKERS, "address": made.address, **own}
    return {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}


def episodes(folder: Any) -> dict[str, Any]:
    """What was sampled, by episode; an episode that stands there twice fails."""
    stored = [it.episode for it in folder.episodes()]
    assert max(Counter(it.id for it in stored).values()) == 1
    return {it.id: it for it in stored}


def test_a_run_with_workers_is_that_of_one_process(cluster: Any, own_place: Any, here: Any) -> None:
    spread = changes(cluster, "spread", trainer={"steps": 2, "save_every": 0})
    for config in (spread, {**spread, "run": {"name": "plain"}, "cluster": None}):
        done = here("train", own_place.config(config), "--json", place=own_place)
        assert done.returncode == 0, done.stderr
    assert not ray.is_initialized()
    folder = own_place.run("spread")
    found, wanted = (episodes(own_place.run(name)) for name in ("spread", "plain"))
    assert found.keys() == wanted.keys()
    # Rounding differs with what a batch holds; the seeds are the same, and so are nearly all tokens.
    assert sum(found[name].ids == it.ids for name, it in wanted.items()) >= 0.9 * len(found)
    for line in folder.metrics_lines("train"):
        assert line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4, "workers have the weights that are trained"
        assert line.metrics["staleness/max"] == 0.0
        assert line.metrics["cluster/workers"] == 2.0
        assert line.metrics["cluster/restarted_workers"] == 0.0
    versions = {v for it in found.values() for v in it.weight_versions if v >= 0}
    assert versions == {0, 1, 2}, "0 and 1 of the steps, 2 of the last evaluation"


def test_too_few_resources_and_no_cluster_are_config_errors(cluster: Any, own_place: Any, here: Any) -> None:
    for section, said in (
        ({"rollout_workers": 3}, "3 workers with 1 CPU each don't fit the Ray cluster, which has room for 2"),
        ({"worker_gpus": 1}, "2 workers with 1 CPU, 1 GPU each don't fit the Ray cluster, which has room for 0"),
    ):
        done = here("train", own_place.config(changes(cluster, "refused", cluster=section)), place=own_place)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_an_address_where_nothing_is(own_place: Any) -> None:
    section = {**WORKERS, "address": "127.0.0.1:1"}
    config = own_place.config({"model": {"path": "runs/warm"}, "run": {"name": "no"}, "cluster": section}, name="no")
    done = own_place.toolrl("train", config)
    assert done.returncode == 1
    assert "cluster.address: the Ray cluster '127.0.0.1:1' can't be joined" in done.stderr
    assert "Traceback" not in done.stderr
