"""A run that trains on an environment of verifiers, with the tiny model."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="verifiers isn't installed")


def test_a_run_on_an_environment_of_verifiers(own_place: Any) -> None:
    site = own_place.site("environments")
    shutil.copy(ROOT / "plugins" / "verifiers" / "tests" / "support" / "vf_games.py", site.folder)
    data = {"use": "verifiers", "options": {"id": "vf-games", "args": {"kind": "tool", "size": 4, "system": False}}}
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"train": data, "eval": None},
        "environments": {"default": {"tools": [], "rewards": [], "harness": "verifiers", "max_turns": 4}},
        "trainer": {"steps": 2, "save_every": 0},
    }
    done = own_place.toolrl("train", own_place.config(changes), site=site)
    assert done.returncode == 0, done.stderr
    assert "no reward function" not in done.stderr, "the rubric is one"
    run = own_place.run("grpo")
    for line in run.metrics_lines("train"):
        assert line.metrics["errors/rate"] == 0
        assert line.metrics["logprob_mismatch/max"] < 1e-5
        assert "reward/harness/right" in line.metrics
    episodes = [it.episode for it in run.episodes()]
    assert {len(episode.trajectories) for episode in episodes} == {1}
    assert any(record.result.text.isdigit() for episode in episodes for record in episode.calls)
    assert {entry.source for episode in episodes for entry in episode.rewards} == {"reward:harness"}
