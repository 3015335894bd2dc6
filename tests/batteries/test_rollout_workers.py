"""Rollout workers on a real Ray cluster of three nodes: the same run as in one process, weights, deaths, refusals."""

from __future__ import annotations

import os
import signal
import threading
import time
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
    tuning = {"trainer": {"steps": 2, "save_every": 0}}
    ways = (("plain", None), ("spread", {}))
    for name, section in ways:
        wanted = changes(cluster, name, **tuning, cluster=section or {})
        if section is None:
            wanted["cluster"] = None
        done = here("train", own_place.config(wanted, name=name), "--json", place=own_place)
        assert done.returncode == 0, done.stderr
    plain, *others = (own_place.run(name) for name, _ in ways)
    wanted_episodes = episodes(plain)
    for folder in others:
        found = episodes(folder)
        assert found.keys() == wanted_episodes.keys()
        # Rounding differs with what a batch holds; the seeds are the same, and so are nearly all tokens.
        same = sum(found[name].ids == it.ids for name, it in wanted_episodes.items())
        assert same >= 0.9 * len(found)
        for line in folder.metrics_lines("train"):
            assert line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4, "workers have the weights that are trained"
            assert line.metrics["staleness/max"] == 0.0
            assert line.metrics["cluster/workers"] == 2.0
            assert line.metrics["cluster/restarted_workers"] == 0.0
        versions = {v for it in found.values() for v in it.weight_versions if v >= 0}
        assert versions == {0, 1, 2}, "0 and 1 of the steps, 2 of the last evaluation"
        for number in range(2):
            log = (folder.directory / "workers" / f"worker-{number}.log").read_text()
            assert f"rollout worker {number} starts: process" in log
    assert not ray.is_initialized()


@pytest.mark.slow
def test_workers_sample_with_an_adapter(cluster: Any, own_place: Any, here: Any) -> None:
    pytest.importorskip("peft")
    config = changes(cluster, "adapter", trainer={"steps": 3, "save_every": 0, "learning_rate": 1.0e-2})
    config["model"] = {"path": "runs/warm", "lora": {}}
    done = here("train", own_place.config(config, name="adapter"), "--json", place=own_place)
    assert done.returncode == 0, done.stderr
    lines = own_place.run("adapter").metrics_lines("train")
    assert len(lines) == 3
    assert all(line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4 for line in lines)


class Killer:
    """Kills workers of a run, found by what their logs say, as a thread beside it: one by one, each a while after so
    many steps are done, and so before the last."""

    def __init__(self, folder: Path, steps: list[int]) -> None:
        self._folder = folder
        self._steps = steps
        self.killed: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number, steps in enumerate(self._steps):
            while not self._stop.is_set() and self._done() < steps:
                time.sleep(0.05)
            if self._stop.wait(0.3):
                return
            pid = worker_pid(self._folder, number % 2)
            if pid not in self.killed:
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)

    def _done(self) -> int:
        """Steps of training whose metrics are there; −1 before the first episode."""
        if not (self._folder / "episodes").is_dir():
            return -1
        metrics = self._folder / "metrics.jsonl"
        return metrics.read_text().count('"train"') if metrics.exists() else 0


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_workers_are_killed_and_nothing_is_lost_or_counted_twice(
    cluster: Any, slow_site: Any, own_place: Any, staleness: int
) -> None:
    name = f"killed-{staleness}"
    config = own_place.config(
        changes(
            cluster,
            name,
            environments={"default": {"tools": [LIMITED], "rewards": ["exact", "slowly"], "max_turns": 3}},
            trainer={"steps": 4, "save_every": 0},
            rollout={"max_staleness": staleness, "concurrency": 4},
            algorithm={"importance": {}} if staleness else {},
        ),
        name=name,
    )
    place = own_place.folder / "runs" / name
    with Killer(place, [0, 2]) as killer:
        done = own_place.toolrl("train", config, "--json", site=slow_site)
    assert done.returncode == 0, done.stderr
    assert len(killer.killed) == 2
    folder = own_place.run(name)
    found = Counter(it.kind for it in folder.episodes())
    assert found["train"] == 4 * 16
    assert found["eval"] == 2 * 12
    episodes(folder)
    lines = folder.metrics_lines()
    assert sum(line.metrics["cluster/restarted_workers"] for line in lines) == len(killer.killed)
    for line in folder.metrics_lines("train"):
        assert line.metrics["staleness/max"] <= staleness
        if not staleness:
            assert line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4, "a new worker has the current weights"
    assert "rollout worker 0 died (" in done.stderr
    queued = [
        record.result.metrics.get("policy/queue_seconds") for it in folder.episodes() for record in it.episode.calls
    ]
    assert any(seconds is not None for seconds in queued), "calls go through the cluster's limit"


def worker_pid(folder: Path, number: int) -> int:
    """The process that was the last one in a place, by its log."""
    text = (folder / "workers" / f"worker-{number}.log").read_text()
    return int(text.rpartition("starts: process ")[2].split()[0])


@pytest.mark.slow
def test_a_node_that_is_lost_loses_no_episode(cluster: Any, slow_site: Any, own_place: Any) -> None:
    config = own_place.config(
        changes(
            cluster,
            "node",
            environments={"default": {"tools": ["calculator"], "rewards": ["exact", "slowly"], "max_turns": 3}},
            trainer={"steps": 3, "save_every": 0},
            rollout={"concurrency": 4},
        ),
        name="node",
    )
    folder = own_place.folder / "runs" / "node"
    process = own_place.start("train", config, stderr=own_place.folder / "node.log", site=slow_site)
    try:
        wait_for(lambda: (folder / ".status.json").exists(), process)
        cluster.remove_node(list(cluster.worker_nodes)[-1])
        cluster.add_node(include_log_monitor=False, object_store_memory=100 * 2**20, num_cpus=1)
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
        process.wait()
    said = (own_place.folder / "node.log").read_text()
    run = own_place.run("node")
    assert Counter(it.kind for it in run.episodes()) == {"train": 3 * 16, "eval": 2 * 12}, said
    episodes(run)
    assert sum(line.metrics["cluster/restarted_workers"] for line in run.metrics_lines()) >= 1


def wait_for(condition: Any, process: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.05)


def test_too_few_resources_and_no_cluster_are_config_errors(cluster: Any, own_place: Any, here: Any) -> None:
    def refused(name: str, section: dict[str, Any]) -> str:
        done = here("train", own_place.config(changes(cluster, name, cluster=section), name=name), place=own_place)
        assert done.returncode == 1
        return str(done.stderr)

    text = refused("many", {"rollout_workers": 3})
    assert "3 workers with 1 CPU each don't fit the Ray cluster, which has room for 2" in text
    text = refused("gpus", {"worker_gpus": 1})
    assert "2 workers with 1 CPU, 1 GPU each don't fit the Ray cluster, which has room for 0" in text
    assert "Traceback" not in text


def test_an_address_where_nothing_is(own_place: Any) -> None:
    section = {**WORKERS, "address": "127.0.0.1:1"}
    config = own_place.config({"model": {"path": "runs/warm"}, "run": {"name": "no"}, "cluster": section}, name="no")
    done = own_place.toolrl("train", config)
    assert done.returncode == 1
    assert "cluster.address: the Ray cluster '127.0.0.1:1' can't be joined" in done.stderr
    assert "Traceback" not in done.stderr
