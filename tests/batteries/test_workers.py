"""Rollout and trainer workers on a real Ray cluster of three nodes: the same run as in one process, SIGTERM, refusals.
`test_kills.py` kills them."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")
ROLLOUT = {"rollout_workers": 2, "worker_cpus": 1}
TRAINER = {"trainer_workers": 2}


SETTINGS = {
    "RAY_gcs_server_request_timeout_seconds": "240",  # A busy machine takes long to start three nodes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_AUTH_MODE": "disabled",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on this machine, to which nothing is connected."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, os.environ.get(name, value))
        node = {"include_log_monitor": False, "object_store_memory": 100 * 2**20}
        made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 1, "include_dashboard": False})
        try:
            for count in (1, 2):
                made.add_node(**node, num_cpus=count)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def changes(made: Any, name: str, cluster: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A config with workers on the cluster, trained from the run `warm`."""
    section = {"address": made.address, **cluster}
    return {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}


def test_a_run_with_workers_is_that_of_one_process(cluster: Any, own_place: Any, here: Any) -> None:
    spread = changes(cluster, "spread", ROLLOUT, trainer={"steps": 2, "save_every": 0})
    for config in (spread, {**spread, "run": {"name": "plain"}, "cluster": None}):
        done = here("train", own_place.config(config), "--json", place=own_place)
        assert done.returncode == 0, done.stderr
    assert not ray.is_initialized()
    folder = own_place.run("spread")
    stored = [[it.episode for it in own_place.run(name).episodes()] for name in ("spread", "plain")]
    found, wanted = ({it.id: it for it in episodes} for episodes in stored)
    assert found.keys() == wanted.keys()
    assert len(found) == len(stored[0]), "an episode stands there twice"
    # Rounding differs with what a batch holds; the seeds are the same, and so are nearly all tokens.
    assert sum(found[name].ids == it.ids for name, it in wanted.items()) >= 0.9 * len(found)
    for line in folder.metrics_lines("train"):
        assert line.metrics.get("logprob_mismatch/max", 0.0) < 1e-4, "workers have the weights that are trained"
        assert (line.metrics["staleness/max"], line.metrics["cluster/workers"]) == (0.0, 2.0)
        assert line.metrics["cluster/restarted_workers"] == 0.0
    versions = {v for it in found.values() for v in it.weight_versions if v >= 0}
    assert versions == {0, 1, 2}, "0 and 1 of the steps, 2 of the last evaluation"


@pytest.mark.slow
def test_sigterm_saves_what_is_done(cluster: Any, own_place: Any, here: Any) -> None:
    """Rollout workers sample beside it: what only the first rank decides reaches the others."""
    both, sections = {**TRAINER, "rollout_workers": 2}, {"rollout": {"max_staleness": 1}, "trainer": {"steps": 500}}
    stderr, folder = own_place.folder / "stderr.txt", own_place.folder / "runs" / "split"
    process = own_place.start("train", own_place.config(changes(cluster, "split", both, **sections)), stderr=stderr)
    try:
        metrics, end = folder / "metrics.jsonl", time.monotonic() + 240
        while not metrics.exists() or metrics.read_text().count('"train"') < 4:
            assert process.poll() is None, stderr.read_text()
            assert time.monotonic() < end, stderr.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 143, stderr.read_text()
    finally:
        process.kill()
    assert stderr.read_text().count("SIGTERM: saving what is done") == 1
    assert "*** SIGTERM received" not in stderr.read_text(), "Ray's own handler ends the process after three seconds"
    run = own_place.run("split")
    assert run.summary()["status"] == "interrupted"
    lines = run.metrics_lines("train")
    assert [line.step for line in lines] == list(range(1, len(lines) + 1))
    stored = Counter(it.episode.id for it in run.episodes(kind="train"))
    assert (set(stored.values()), len(stored)) == ({1}, len(lines) * 16)
    assert sorted(path.name for path in run.checkpoints.iterdir())[-1] == f"step-{len(lines):06d}"
    assert max(line.metrics["staleness/max"] for line in lines) == 1.0


def test_an_error_of_a_rank_ends_the_run_and_is_not_tried_again(cluster: Any, own_place: Any) -> None:
    done = own_place.toolrl(
        "train", own_place.config(changes(cluster, "broken", TRAINER, rollout={"max_episode_tokens": 10**9}))
    )
    assert done.returncode == 1
    assert "rollout.max_episode_tokens: 1000000000 tokens, but the model can attend to" in done.stderr
    assert "go on from the last checkpoint" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("section", "rollout", "said"),
    [
        (
            {**ROLLOUT, "rollout_workers": 5},
            {},
            "5 workers with 1 CPU each don't fit the Ray cluster",
        ),
        ({**ROLLOUT, "worker_gpus": 1}, {}, "2 workers with 1 CPU, 1 GPU each don't fit the Ray cluster"),
        ({**ROLLOUT, "address": "127.0.0.1:1"}, {}, "cluster.address: the Ray cluster '127.0.0.1:1' can't be joined"),
        ({"trainer_workers": 5}, {}, "which has room for 4"),
        ({**TRAINER, "rollout_workers": 3}, {}, "which has room for 2 beside 2 trainer workers"),
        (TRAINER, {"max_staleness": 1}, "rollout and training take turns"),
    ],
)
def test_what_cannot_be_is_refused(
    section: dict[str, Any], rollout: dict[str, Any], said: str, cluster: Any, own_place: Any
) -> None:
    done = own_place.toolrl("train", own_place.config(changes(cluster, "refused", section, rollout=rollout)))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
