"""Trainer workers on a real Ray cluster of three nodes: what one process does, deaths of each rank, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

import ray

SETTINGS = {
    "RAY_gcs_server_request_timeout_seconds": "240",  # A busy machine takes long to start three nodes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_AUTH_MODE": "disabled",
}
STORE = 100 * 2**20
TRAINERS = {"trainer_workers": 2}

BUMPY = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_tools():
            yield Component("bumpy", "toolrl_plugin_bumpy.bumpy:build", summary="Adds; stands where told.")
    """,
    "bumpy": '''
        """From the third step on the tool waits as long as a file says so."""
        import asyncio
        from pathlib import Path
        from toolrl.protocols import EpisodeContext
        from toolrl.tools import ToolError, tool

        def build(options, context):
            return adder

        @tool(name="calculator")
        async def adder(expression: str, *, episode: EpisodeContext) -> str:
            """Adds.

            Args:
                expression: Two numbers with a plus.
            """
            while episode.episode_id.startswith("train-3") and Path("stand").exists():
                await asyncio.sleep(0.05)
            try:
                return str(sum(map(int, expression.split("+"))))
            except ValueError as error:
                raise ToolError("That is no sum.") from error
    ''',
}
BUMPY_TOOL = {"default": {"tools": ["bumpy"], "rewards": ["exact"], "max_turns": 3}}


@pytest.fixture(scope="module")
def site(workplace: Any) -> Any:
    """A plugin with a tool that stands where it is told to."""
    made = workplace.site("bumpy")
    made.add("bumpy", BUMPY)
    return made


@pytest.fixture(scope="module")
def cluster(site: Any) -> Iterator[Any]:
    """Three nodes, where the plugin is installed. Nothing is connected to it."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, os.environ.get(name, value))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site.folder), str(Path(__file__).parent)]), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        node = {"include_log_monitor": False, "object_store_memory": STORE}
        made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 1, "include_dashboard": False})
        try:
            made.add_node(**node, num_cpus=1)
            made.add_node(**node, num_cpus=2)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


class Run:
    """`toolrl train` with two trainer workers, watched by the file that it keeps of them."""

    def __init__(self, made: Any, place: Any, site: Any, name: str, **sections: Any) -> None:
        section = {**TRAINERS, "address": made.address, **sections.pop("cluster", {})}
        changes = {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}
        self.folder = place.folder / "runs" / name
        self._place = place
        self._errors = place.folder / f"{name}.log"
        self.process = place.start("train", place.config(changes, name=name), stderr=self._errors, site=site)

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def trainers(self) -> list[dict[str, Any]]:
        """What each rank does, nothing while that isn't known."""
        try:
            return list(json.loads((self.folder / ".trainers.json").read_text())["trainers"])
        except (OSError, ValueError):
            return []

    def wait(self, until: Callable[[], Any], seconds: float = 240.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := until()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, (self.trainers(), self.said)
            time.sleep(0.05)
        return found

    def running(self, rank: int, step: int) -> int | None:
        """The process of a rank that trains and has done so many steps."""
        known = self.trainers()
        if not known or known[rank]["state"] != "running" or (known[rank]["step"] or 0) < step:
            return None
        return int(known[rank]["pid"])

    def end(self, status: int = 0) -> Any:
        """The run's folder when the command has ended with this status."""
        try:
            assert self.process.wait(timeout=300) == status, self.said
        finally:
            self.process.kill()
            self.process.wait()
        return self._place.run(self.folder.name)


def once(folder: Any, steps: int, prompts: int = 4) -> None:
    """Every step stands there once, with all of its episodes, each once."""
    assert [line.step for line in folder.metrics_lines("train")] == list(range(1, steps + 1))
    stored = Counter(it.episode.id for it in folder.episodes(kind="train"))
    assert set(stored.values()) == {1}
    assert len(stored) == steps * prompts * 4


def lost(folder: Any) -> tuple[float, float]:
    """Restarts, and steps that were done again, that the lines of metrics tell of."""
    names = ("cluster/restarted_trainers", "cluster/repeated_steps")
    restarts, repeated = (sum(line.metrics[name] for line in folder.metrics_lines()) for name in names)
    return restarts, repeated


def test_a_fixed_batch_is_trained_on_as_in_one_process(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import fixed_batch

    from toolrl.cluster.ray_trainers import TrainerPlaces
    from toolrl.cluster.trainer_messages import TrainerOrder
    from toolrl.cluster.trainers import TrainerGroup
    from toolrl.config.cluster import ClusterConfig
    from toolrl.config.load import LoadedConfig
    from toolrl.config.model import Config
    from toolrl.loop.ranks import ONE

    config = Config.model_validate({"model": {"path": "m"}, "environments": {"default": {}}})
    loaded = LoadedConfig(config, {}, "config")
    order = TrainerOrder(0, 2, loaded, str(tmp_path), str(tmp_path), resume=False, overwrite=False, json=False)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        places = TrainerPlaces(ClusterConfig(trainer_workers=2), "fixed_batch", tmp_path)
        assert asyncio.run(TrainerGroup(order, places.spawn, 240.0, 0).run()) == 0
        places.close()
    finally:
        ray.shutdown()
    metrics, weights = torch.load(tmp_path / fixed_batch.LEAVES, weights_only=False)
    torch.set_num_threads(1)
    expected_metrics, expected_weights = fixed_batch.trained(ONE, tmp_path)
    for ours, expected in zip(metrics, expected_metrics, strict=True):
        assert abs(expected["loss"]) > 1e-4
        assert ours["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    for name, value in expected_weights.items():
        assert float((weights[name] - value).abs().max()) <= 1e-5, name


@pytest.mark.slow
def test_each_rank_is_killed_and_every_step_is_there_once(cluster: Any, site: Any, own_place: Any) -> None:
    """Colocated. Each dies in the third step, where the tool stands; as there is no checkpoint yet, all begin anew."""
    stand = own_place.folder / "stand"
    stand.touch()
    run = Run(cluster, own_place, site, "killed", environments=BUMPY_TOOL, trainer={"steps": 4, "save_every": 3})
    try:
        second = run.wait(lambda: run.running(0, 2) and run.running(1, 2))
        first = run.running(0, 2)
        os.kill(second, signal.SIGKILL)
        again = run.wait(lambda: (it := run.running(0, 2)) != first and it)
        os.kill(again, signal.SIGKILL)
        run.wait(lambda: "trainer worker 0 was ended by SIGKILL" in run.said)
        stand.unlink()
        folder = run.end()
    finally:
        run.process.kill()
    assert "trainer worker 1 was ended by SIGKILL" in run.said
    once(folder, 4)
    assert lost(folder) == (2, 4), "twice, and each time two steps"
    assert all(line.metrics["cluster/trainer_workers"] == 2 for line in folder.metrics_lines())
    assert folder.summary()["status"] == "finished"
    for rank in range(2):
        log = (folder.directory / "workers" / f"trainer-{rank}.log").read_text()
        assert log.count(f"trainer worker {rank} starts: process") == 3
    assert not (folder.directory / ".trainers.json").exists()


@pytest.mark.slow
def test_rollout_workers_sample_and_trainer_workers_train(cluster: Any, site: Any, own_place: Any, here: Any) -> None:
    """Split, with rollout and training overlapping: what only the first rank decides reaches the others. It is killed,
    and later the run is ended in order."""
    run = Run(
        cluster, own_place, site, "split",
        cluster={"rollout_workers": 2, "placement": "split", "weight_transfer": "broadcast"},
        rollout={"max_staleness": 1}, trainer={"steps": 500, "save_every": 2},
    )  # fmt: skip
    try:
        killed = run.wait(lambda: run.running(0, 3))
        os.kill(killed, signal.SIGKILL)
        run.wait(lambda: "trainer worker 0 was ended by SIGKILL" in run.said)
        run.wait(lambda: run.running(0, 6) not in (None, killed) and run.running(1, 6))
        status = here("status", "runs/split", place=own_place)
        run.process.send_signal(signal.SIGTERM)
        folder = run.end(status=143)
    finally:
        run.process.kill()
    assert "times that all trainer workers began again: 1" in status.stdout
    assert "trainer  state    process" in status.stdout
    assert "SIGTERM: saving what is done" in run.said
    assert "*** SIGTERM received" not in run.said, "Ray's own handler would end the process after three seconds"
    assert folder.summary()["status"] == "interrupted"
    lines = folder.metrics_lines("train")
    once(folder, len(lines))
    assert sorted(path.name for path in folder.checkpoints.iterdir())[-1] == f"step-{len(lines):06d}"
    assert lost(folder)[0] == 1
    assert {line.metrics["cluster/workers"] for line in lines} == {2.0}
    assert max(line.metrics["staleness/max"] for line in lines) == 1.0
    assert all(
        line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4 for line in lines if line.metrics["staleness/max"] == 0
    )


def test_what_cannot_be_is_refused(cluster: Any, own_place: Any, here: Any) -> None:
    def refused(name: str, **sections: Any) -> str:
        section = {**TRAINERS, "address": cluster.address, **sections.pop("cluster", {})}
        config = {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}
        done = here("train", own_place.config(config, name=name), place=own_place)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert not (own_place.folder / "runs" / name).exists()
        return str(done.stderr)

    assert "which has room for 4" in refused("many", cluster={"trainer_workers": 5})
    text = refused("beside", cluster={"rollout_workers": 3})
    assert "beside 2 trainer workers with 1 CPU each there is room for 2 rollout workers" in text
    assert "this node has 1 CPU of the 2 CPU" in refused("own", cluster={"trainer_cpus": 2})
    assert "rollout and training take turns" in refused("stale", rollout={"max_staleness": 1})
    assert "`colocated` means" in refused("both", cluster={"rollout_workers": 2, "placement": "colocated"})
    assert "`split` needs processes that sample" in refused("none", cluster={"placement": "split"})
    done = here("train", own_place.config({"run": {"name": "warm"}, "cluster": TRAINERS}, name="warm"), place=own_place)
    assert "there is a run here already" in done.stderr
