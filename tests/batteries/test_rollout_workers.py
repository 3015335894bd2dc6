"""Rollout workers on a real Ray cluster of three nodes: the same run as in one process, weights, deaths, refusals."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

import ray

LIMITED = {"use": "calculator", "policy": {"concurrency": 2, "limit_scope": "cluster", "limit_lease": 5}}
"""A tool whose limit all workers share; a killed one's permits come back."""
WORKERS = {"rollout_workers": 2, "worker_cpus": 1}


SLOW_REWARD = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_rewards():
            yield Component("slowly", "toolrl_plugin_slow.plugin:build", summary="Takes its time.")

        class Slowly:
            async def score(self, episode):
                import asyncio
                from toolrl.types import Score
                await asyncio.sleep(0.5)
                return Score(0.0)

        def build(options, context):
            return Slowly()
    """
}


@pytest.fixture(scope="module")
def slow_site(workplace: Any) -> Any:
    """A plugin with a reward that takes half a second."""
    site = workplace.site("slow")
    site.add("slow", SLOW_REWARD)
    return site


@pytest.fixture(scope="module")
def cluster(slow_site: Any, ray_cluster: Any) -> Iterator[Any]:
    """Three nodes, two of them with a CPU, where the slow plugin is installed."""
    with ray_cluster([0, 1, 1], [slow_site.folder]) as made:
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


def kill_workers(folder: Path, killed: list[int], ended: threading.Event) -> None:
    """Each worker once, the second when two steps are done."""
    for number, steps in enumerate((0, 2)):
        while steps_done(folder) < steps:
            if ended.wait(0.05):
                return
        log = (folder / "workers" / f"worker-{number}.log").read_text()
        killed.append(int(log.rpartition("starts: process ")[2].split()[0]))
        ended.wait(0.3)
        os.kill(killed[-1], signal.SIGKILL)


def steps_done(folder: Path) -> int:
    """Steps of training whose metrics are there; −1 before the first episode."""
    if not (folder / "episodes").is_dir():
        return -1
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count('"train"') if metrics.exists() else 0


def test_workers_are_killed_and_nothing_is_lost_or_counted_twice(cluster: Any, slow_site: Any, own_place: Any) -> None:
    config = changes(
        cluster, "killed",
        environments={"default": {"tools": [LIMITED], "rewards": ["exact", "slowly"], "max_turns": 3}},
        trainer={"steps": 4, "save_every": 0}, rollout={"max_staleness": 1, "concurrency": 4},
        algorithm={"importance": {}},
    )  # fmt: skip
    killed, ended = list[int](), threading.Event()
    killer = threading.Thread(
        target=kill_workers, args=(own_place.folder / "runs" / "killed", killed, ended), daemon=True
    )
    killer.start()
    try:
        done = own_place.toolrl("train", own_place.config(config), "--json", site=slow_site)
    finally:
        ended.set()
        killer.join()
    assert done.returncode == 0, done.stderr
    assert len(killed) == 2
    folder = own_place.run("killed")
    assert Counter(it.kind for it in folder.episodes()) == {"train": 4 * 16, "eval": 2 * 12}
    stored = episodes(folder)
    assert sum(line.metrics["cluster/restarted_workers"] for line in folder.metrics_lines()) == len(killed)
    assert max(line.metrics["staleness/max"] for line in folder.metrics_lines("train")) <= 1
    assert "rollout worker 0 died (" in done.stderr
    queued = [record.result.metrics.get("policy/queue_seconds") for it in stored.values() for record in it.calls]
    assert any(seconds is not None for seconds in queued), "calls go through the cluster's limit"


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
