"""Trainer workers on a real Ray cluster of three nodes: SIGTERM, an error of one, refusals."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> Iterator[Any]:
    """Three nodes."""
    with ray_cluster([1, 1, 2]) as made:
        yield made


def changes(made: Any, name: str, **sections: Any) -> dict[str, Any]:
    """A config with two trainer workers on the cluster, trained from the run `warm`."""
    section = {"trainer_workers": 2, "address": made.address, **sections.pop("cluster", {})}
    return {"model": {"path": "runs/warm"}, "run": {"name": name}, "cluster": section, **sections}


@pytest.mark.slow
def test_sigterm_saves_what_is_done(cluster: Any, own_place: Any, here: Any) -> None:
    """Rollout workers sample beside it: what only the first rank decides reaches the others."""
    sections = {"cluster": {"rollout_workers": 2}, "rollout": {"max_staleness": 1}, "trainer": {"steps": 500}}
    stderr, folder = own_place.folder / "stderr.txt", own_place.folder / "runs" / "split"
    process = own_place.start("train", own_place.config(changes(cluster, "split", **sections)), stderr=stderr)
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
        "train", own_place.config(changes(cluster, "broken", rollout={"max_episode_tokens": 10**9}))
    )
    assert done.returncode == 1
    assert "rollout.max_episode_tokens: 1000000000 tokens, but the model can attend to" in done.stderr
    assert "go on from the last checkpoint" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"cluster": {"trainer_workers": 5}}, "which has room for 4"),
        ({"cluster": {"rollout_workers": 3}}, "which has room for 2 beside 2 trainer workers"),
        ({"rollout": {"max_staleness": 1}}, "rollout and training take turns"),
    ],
)
def test_what_cannot_be_is_refused(
    sections: dict[str, Any], said: str, cluster: Any, own_place: Any, here: Any
) -> None:
    done = here("train", own_place.config(changes(cluster, "refused", **sections)), place=own_place)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (own_place.folder / "runs" / "refused").exists()
