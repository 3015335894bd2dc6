"""The observer `mlflow` with the real library and a database of SQLite: what MLflow's client reads back."""

from __future__ import annotations

import csv
import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from toolrl.protocols import BuildContext
from toolrl_plugin_mlflow.observer import MlflowObserver
from toolrl_plugin_mlflow.options import MlflowOptions

PLAYED = runpy.run_path(str(Path(__file__).parents[2] / "common" / "tests" / "support" / "tracked_run.py"))


def play(directory: Path, **options: Any) -> dict[str, int]:
    given = MlflowOptions(project="agents", **options)
    failures: dict[str, int] = PLAYED["play_interrupted_and_resumed"](directory, lambda it: MlflowObserver(given, it))
    return failures


def test_a_run_and_its_resume_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow makes its folder of artifacts here.
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert play(tmp_path / "r", tracking_uri=uri, tags={"team": "a"}) == {}
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("agents")
    (run,) = client.search_runs([experiment.experiment_id])
    assert json.loads((tmp_path / "r" / "trackers.json").read_text()) == {"mlflow": run.info.run_id}
    assert (run.info.run_name, run.info.status) == ("r", "FAILED")
    assert run.data.tags["team"] == "a"
    assert run.data.tags["error"] == "ValueError: out of memory"
    assert run.data.params["environments.default.tools.0.use"] == "add"
    assert run.data.params["engine.options.api_key"] == "***"

    def history(name: str) -> list[tuple[int, float]]:
        return [(it.step, it.value) for it in client.get_metric_history(run.info.run_id, name)]

    assert history("train/reward/mean") == [(1, 0.25), (2, 0.5), (2, 0.75)]
    assert history("eval/pass_at_8") == [(2, 1.0)]
    assert all(math.isnan(value) for _, value in history("train/loss"))
    files = {it.path for it in client.list_artifacts(run.info.run_id, "samples")}
    assert files == {"samples/train-000001.csv", "samples/eval-000002.csv"}
    path = Path(client.download_artifacts(run.info.run_id, "samples/eval-000002.csv", str(tmp_path)))
    with path.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["prompt"], row["answer"], row["reward"], row["calls"]) == ("What is 2 + 3?", "5", "1.1", "1")
    config = Path(client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))).read_text()
    assert "seed: 4" in config, "the resumed run's"
    assert "sk-written-out" not in config


NAMES = (
    *("train/reward/r/p@1", "train/reward/r/p_at_1", "train/reward/r/p_at_1-x", "train/reward/r/p#1"),
    *("train/reward/r/p_1", "train/environment/reward/数学", "train/environment/reward/代码", "train/tool/código/n"),
    *("train/environment/reward/math (easy)", "train/environment/reward/math [easy]", "train/calls/error/é:ok"),
    *("train/reward/r//x", "train/reward/r/./x", "train/reward/r/../x", "train/reward/r/x/", "train/reward/r/🙂"),
    *("train/" + "a" * 300 + "b", "train/" + "a" * 300 + "c", "eval/avg@8/stderr", "eval/reward/r/pass@8"),
    *("eval/pass@8", "eval/pass_at_8"),
)


def test_each_name_is_a_curve_of_its_own(tmp_path: Path) -> None:
    names = (*NAMES, *(f"train/tool/t/{number}" for number in range(1100)))
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    observer = MlflowObserver(MlflowOptions(), BuildContext("mlflow"))
    observer._client = client
    observer._run_id = client.create_run(client.create_experiment("names", str(tmp_path))).info.run_id
    observer._log_metrics({name: float(number) for number, name in enumerate(names)}, 1, 0)
    found = client.get_run(observer._run_id).data.metrics
    assert sorted(found.values()) == [float(number) for number in range(len(names))]
    kept = {name for name, value in found.items() if names[int(value)] == name}
    assert {"train/environment/reward/数学", "train/tool/código/n", "train/reward/r/p_at_1"} < kept
    assert found["eval/pass_at_8"] == names.index("eval/pass@8")
    observer._log_params({"environments.数学.parser": "a", "environments.代码.parser": "b", "a@b": "c", "a_at_b": "d"})
    assert sorted(client.get_run(observer._run_id).data.params.values()) == ["a", "b", "c", "d"]


def test_a_server_that_is_not_there_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert play(tmp_path / "r", tracking_uri="http://127.0.0.1:9") == {}
    said = [it.message for it in caplog.records if it.name.startswith("toolrl")]
    assert [it.partition(":")[0] for it in said] == ["mlflow", "mlflow"], "once a process"
    assert "training continues" in said[0]


def test_a_run_does_not_wait_longer_than_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr("threading.Thread.join", lambda self, timeout=None: waited.append(timeout))
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    play(tmp_path / "r", finish_seconds=7)
    assert waited == [7, 7]
