"""`toolrl status`: of runs that go on, that were killed, and that said nothing yet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.status import NAME, status_file


def a_run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "grpo", {}, total_steps=10)
    folder.write_summary({"status": "running"})
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["status", *arguments]) == 0
    return capsys.readouterr().out


def worker(number: int, **facts: Any) -> dict[str, Any]:
    place = {"worker": number, "state": "ready", "pid": 100 + number, "node": "host", "groups": 2, "weights": 7}
    tool = {"calls": 4, "errors": 1, "p50": 0.01 * (number + 1), "p95": 0.02, "max": 0.5}
    return {**place, "running": 5, "waiting": 1, "ended": 40, "failed": 0, "tools": {"search": tool}, **facts}


async def test_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(tmp_path)
    metrics = {"time/step": 3.0, "time/rollout": 2.0, "staleness/mean": 0.25, "staleness/max": 2.0, "groups/waiting": 3}
    folder.metrics.append(StepReport(4, "train", metrics), 16)
    workers = [worker(0), worker(1, breakers={"api": "open", "db": "closed"}), {"worker": 2, "state": "starting"}]
    facts = {"doing": "updating, step 5", "doing_seconds": 4.0, "waiting_groups": 9, "workers": workers}
    facts["restarted"] = {"limits": 1, "servers": 3}
    async with status_file(folder.directory, lambda: facts):
        await asyncio.sleep(0)
        path = str(folder.directory)
        text, data = said(capsys, path), json.loads(said(capsys, path, "--json"))
    assert "grpo: running" in text
    assert "last step: rollout 2.0 s, step 3.0 s" in text
    assert "staleness of its samples, in weight versions: mean 0.25, max 2; finished groups waiting: 3" in text
    assert "now updating, step 5, for 4 s (process " in text
    assert "groups waiting for a free worker: 9" in text
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert lines["0"] == ["0", "ready", "100", "on", "host", "7", "2", "5", "1", "40", "0"]
    assert lines["2"] == ["2", "starting", *["-"] * 7]
    assert lines["search"] == ["search", "8", "2", "20.0", "20.0", "500.0"]
    assert "circuit breaker of 'api' in worker 1: open" in text
    assert "'db'" not in text
    assert "restarted since the run began: the cluster's limits 1, servers of tools 3" in text
    assert data["now"]["restarted"] == {"limits": 1, "servers": 3}
    assert data["now"]["workers"][1]["breakers"] == {"api": "open", "db": "closed"}
    assert (data["live"], data["last"]["time/step"]) == (True, 3.0)
    assert not (folder.directory / NAME).exists(), "it is deleted in the end"


def test_a_run_that_was_killed_says_nothing_of_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(tmp_path)
    (folder.directory / NAME).write_text('{"time": 0, "doing": "updating"}')
    folder.close()
    text = said(capsys, str(folder.directory))
    assert "grpo: interrupted" in text
    assert "not running" in text
    assert "updating" not in text


def test_a_run_that_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(tmp_path)
    assert "starting" in said(capsys, str(folder.directory))
