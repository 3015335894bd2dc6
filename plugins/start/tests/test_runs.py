"""`toolrl runs`: a list, and runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder

FACTS = {"status": "finished", "started": "2026-11-23T10:00:00+00:00", "seconds": 75.0}


def add(name: str, rate: float, accuracy: float, **facts: Any) -> None:
    """A run of two steps."""
    config = {"model": {"path": "tiny"}, "trainer": {"learning_rate": rate}, "run": {"name": name}}
    folder = RunFolder.create(Path("runs") / name, config, total_steps=2, kind="train")
    folder.metrics.append(StepReport(2, "train", {"accuracy": 0.1, "reward/mean": 0.2}))
    if accuracy:
        folder.metrics.append(StepReport(2, "eval", {"accuracy": accuracy, "accuracy/stderr": 0.02}))
    folder.write_summary({**FACTS, **facts}, final=True)
    folder.close()


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    add("later", 1e-5, 0.75, started="2026-11-24T10:00:00+00:00")
    add("group/first", 1e-6, 0.0)
    (Path("runs") / "torn").mkdir()
    for name, text in {"config.yaml": "a: b", "plugins.json": "{}", "summary.json": "{"}.items():
        (Path("runs") / "torn" / name).write_text(text)


def test_runs_are_listed_by_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    _, first, later, torn = capsys.readouterr().out.splitlines()
    assert torn.split()[:3] == ["torn", "-", "unreadable"], "without a start it has the date of its config"
    assert " ".join(first.split()) == (
        "first train finished 2/2 0.100 (train) 0.200 1 min 15 s 2026-11-23 10:00 runs/group/first"
    )
    assert later.split()[:7] == ["later", "train", "finished", "2/2", "0.750", "±", "0.020"]
    assert main(["runs", "--json", "runs"]) == 0
    facts = json.loads(capsys.readouterr().out)[-2]
    assert (facts["kind"], facts["metrics_of"]) == ("train", "eval")
    assert (facts["accuracy"], facts["accuracy_stderr"]) == (0.75, 0.02)


def test_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "runs/group/first", "runs/later"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["first", "later"]
    assert ["eval", "accuracy", "-", "0.750", "±", "0.020"] in shown
    assert shown[-1] == ["trainer.learning_rate", "1e-06", "1e-05"], "and no path that is equal"


def test_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "nowhere"]) == 1
    assert "nowhere: no such folder" in capsys.readouterr().err
