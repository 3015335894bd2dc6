"""Sample episodes as rows, and what a tracker's failures leave."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any, ClassVar

import pytest

from toolrl_common.tracking import COLUMNS, SampleRows, Tracker, TrackerOptions, flat, without_secrets

PLAYED = runpy.run_path(str(Path(__file__).parent / "support" / "tracked_run.py"))
build_episode = PLAYED["build_episode"]


def test_samples_are_bounded_and_do_not_depend_on_the_order() -> None:
    episodes = [build_episode(index) for index in range(50)]
    forward, backward = SampleRows(5, 4000), SampleRows(5, 4000)
    for one, other in zip(episodes, reversed(episodes), strict=True):
        forward.add(one)
        backward.add(other)
    assert forward.rows(3) == backward.rows(3)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in forward.rows(3)]
    assert len({row["task"] for row in rows}) == 5
    assert {row["task"] for row in rows} != {f"t{index}" for index in range(5)}
    none = SampleRows(0, 4000)
    none.add(episodes[0])
    assert none.rows(3) == []


def test_long_texts_are_cut_in_the_middle_and_failures_have_a_cause() -> None:
    samples = SampleRows(1, 100)
    samples.add(build_episode(question="q" * 149 + "\ud800", failed=True))
    row = dict(zip(COLUMNS, samples.rows(1)[0], strict=True))
    assert row["prompt"] == "q" * 50 + " […50 characters…] " + "q" * 49 + "?", "half of a surrogate pair can't be sent"
    assert (row["stop_reason"], row["error"], row["expected"]) == ("error", "add: no connection", "5")


class Broken(Tracker):
    tracker = "broken"
    opened: ClassVar[list[Any]] = []

    def open(self, run: Any, config: dict[str, Any], kept: str | None) -> None:
        self.opened.append(kept)
        self.keep("run-1")

    def send(self, report: Any, metrics: dict[str, float], rows: list[list[Any]]) -> None:
        raise OSError("no route")

    def close(self, status: str, error: BaseException | None) -> None:
        self.opened.append(status)


def test_failures_are_said_once_and_a_resume_gets_the_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "r").mkdir()
    failures = PLAYED["play_interrupted_and_resumed"](tmp_path / "r", lambda it: Broken(TrackerOptions(), it))
    assert failures == {}
    assert Broken.opened == [None, "interrupted", "run-1", "failed"]
    said = [it for it in caplog.messages if it.startswith("broken")]
    assert [it for it in said if "no route" in it] == said[::2], "once a process, then their number"
    assert json.loads((tmp_path / "r" / "trackers.json").read_text()) == {"broken": "run-1"}


def test_a_config_is_flattened_by_dotted_paths() -> None:
    assert flat({"a": {"b": [1, {"c": None}]}, "d": True}) == {"a.b.0": 1, "a.b.1.c": None, "d": True}


def test_secrets_that_are_written_out_are_not_sent() -> None:
    url, uri = "https://host/p?write_token={}&x=1", "postgresql://{}@host/runs"
    plain = {"video_key": "clip", "token": "${TOKEN}", "max_tokens": 9, "base_url": "http://127.0.0.1:80/v1"}
    secret = {
        "api_key": "sk",
        "headers": {"X": "v"},
        "env": ["A=b"],
        "url": url.format("t"),
        "uri": uri.format("me:pw"),
    }
    hidden = {
        "headers": {"X": "***"},
        "api_key": "***",
        "env": ["***"],
        "url": url.format("***"),
        "uri": uri.format("***"),
    }
    assert without_secrets([{"options": {**plain, **secret}}]) == [{"options": {**plain, **hidden}}]
