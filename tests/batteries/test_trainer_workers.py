"""Trainer workers on a real Ray cluster of three nodes: a rank's death, an error of one, SIGTERM, refusals.
`worker_kill_battery.py` kills every rank at random moments."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")


TRAINERS = {"trainer_workers": 2}


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> Iterator[Any]:
    """Three nodes."""
    with ray_cluster([1, 1, 2], []) as made:
        yield made


class Run:
    """`toolrl train` with two trainer workers, watched by its logs and metrics."""

    def __init__(self, made: Any, place: Any, name: str, **sections: Any) -> None:
        section = {**TRAINERS, "address": made.address, **sections.pop("cluster", {})}
        changes = {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}
        self.folder = place.folder / "runs" / name
        self._place = place
        self._errors = place.folder / f"{name}.log"
        self.process = place.start("train", place.config(changes, name=name), stderr=self._errors)

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def wait(self, until: Callable[[], Any], seconds: float = 240.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := until()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.05)
        return found

    def pid(self, rank: int) -> int:
        """The process that began the rank's log last."""
        log = (self.folder / "workers" / f"trainer-{rank}.log").read_text()
        return int(log.rpartition("starts: process ")[2].split()[0])

    def steps(self) -> int:
        """Steps whose metrics are there."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_text().count('"train"') if metrics.exists() else 0

    def end(self, status: int) -> Any:
        """The run's folder when the command has ended with this status."""
        assert self.process.wait(timeout=300) == status, self.said
        return self._place.run(self.folder.name)


@pytest.mark.slow
def test_rollout_workers_sample_and_trainer_workers_train(cluster: Any, own_place: Any, here: Any) -> None:
    """Split, with rollout and training overlapping: what only the first rank decides reaches the others. It is killed,
    and later the run is interrupted."""
    run = Run(
        cluster, own_place, "split", cluster={"rollout_workers": 2}, rollout={"max_staleness": 1},
        trainer={"steps": 500, "save_every": 2},
    )  # fmt: skip
    try:
        run.wait(lambda: run.steps() >= 3)
        os.kill(run.pid(0), signal.SIGKILL)
        run.wait(lambda: "trainer worker 0 was ended by SIGKILL" in run.said)
        run.wait(lambda: run.steps() >= 6)
        status = here("status", "runs/split", place=own_place)
        run.process.send_signal(signal.SIGTERM)
        folder = run.end(status=143)
    finally:
        run.process.kill()
    assert "restarts of all ranks: 1" in status.stdout
    assert run.said.count("SIGTERM: saving what is done") == 1
    assert "*** SIGTERM received" not in run.said, "Ray's own handler would end the process after three seconds"
    assert folder.summary()["status"] == "interrupted"
    lines = folder.metrics_lines("train")
    assert [line.step for line in lines] == list(range(1, len(lines) + 1))
    stored = Counter(it.episode.id for it in folder.episodes(kind="train"))
    assert set(stored.values()) == {1}
    assert len(stored) == len(lines) * 16
    assert sorted(path.name for path in folder.checkpoints.iterdir())[-1] == f"step-{len(lines):06d}"
    assert {line.metrics["cluster/workers"] for line in lines} == {2.0}
    assert max(line.metrics["staleness/max"] for line in lines) == 1.0


def test_an_error_of_a_rank_ends_the_run_and_is_not_tried_again(cluster: Any, own_place: Any) -> None:
    run = Run(cluster, own_place, "broken", rollout={"max_episode_tokens": 10**9})
    assert run.process.wait(timeout=300) == 1
    assert "rollout.max_episode_tokens: 1000000000 tokens, but the model can attend to" in run.said
    assert "go on from the last checkpoint" not in run.said
    assert "Traceback" not in run.said


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
    assert "which has room for 2 beside 2 trainer workers" in refused("beside", cluster={"rollout_workers": 3})
    assert "rollout and training take turns" in refused("stale", rollout={"max_staleness": 1})
    done = here("train", own_place.config({"run": {"name": "warm"}, "cluster": TRAINERS}, name="warm"), place=own_place)
    assert "there is a run here already" in done.stderr
