"""The observer `trackio` with the real library: what its SQLite file holds."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

PLAYED = Path(__file__).parents[2] / "common" / "tests" / "support" / "tracked_run.py"
SCRIPT = """
import runpy, sys
from pathlib import Path
from toolrl_plugin_trackio.observer import TrackioObserver
from toolrl_plugin_trackio.options import TrackioOptions
played = runpy.run_path(sys.argv[1])
options = TrackioOptions(project="agents", server_url=sys.argv[3] or None)
failures = played["play_interrupted_and_resumed"](Path(sys.argv[2]), lambda context: TrackioObserver(options, context))
print(failures)
"""


def play(directory: Path, server: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own: Trackio reads its folder's place when it is imported."""
    env = {**os.environ, "TRACKIO_DIR": str(directory.parent / "trackio"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCRIPT, str(PLAYED), str(directory), server]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env)


def query(tmp_path: Path, text: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(tmp_path / "trackio" / "agents.db") as database:
        return database.execute(text).fetchall()


def test_a_run_and_its_resume_are_one_run(tmp_path: Path) -> None:
    done = play(tmp_path / "r")
    assert done.stdout == "{}\n", "what Trackio prints goes to standard error"
    kept = json.loads((tmp_path / "r" / "trackers.json").read_text())["trackio"]
    assert query(tmp_path, "select distinct run_id, run_name from metrics") == [(kept, "r")]
    rows = [(step, json.loads(it)) for step, it in query(tmp_path, "select step, metrics from metrics order by id")]
    assert [(step, it.get("train/reward/mean"), it.get("eval/pass@8")) for step, it in rows] == [
        (1, 0.25, None), (2, 0.5, None), (2, 0.75, None), (2, None, 1.0),
    ]  # fmt: skip
    assert {key: len(value["_value"]) for _, it in rows for key, value in it.items() if "samples" in key} == {
        "samples/train": 2,
        "samples/eval": 1,
    }
    sample = rows[3][1]["samples/eval"]["_value"][0]
    assert (sample["prompt"], sample["answer"], sample["calls"]) == ("What is 2 + 3?", "5", 1)
    (config,) = (json.loads(it) for (it,) in query(tmp_path, "select config from configs"))
    assert (config["seed"], config["engine"]["options"]["api_key"]) == (4, "***")
    assert query(tmp_path, "select title, text from alerts order by id") == [
        ("r interrupted", "KeyboardInterrupt: "),
        ("r failed", "ValueError: out of memory"),
    ]


def test_a_server_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    done = play(tmp_path / "r", "http://127.0.0.1:9?write_token=t")
    assert done.stdout == "{}\n"
    assert "could not create a remote client" in done.stderr
    assert len(query(tmp_path, "select * from metrics")) == 4, "kept for the next run"
