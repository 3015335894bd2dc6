"""The observer `wandb` with the real library, offline: what its run files hold."""

from __future__ import annotations

import json
import runpy
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from toolrl.errors import ConfigError
from toolrl_plugin_wandb import observer
from toolrl_plugin_wandb.observer import WandbObserver
from toolrl_plugin_wandb.options import WandbOptions

PLAYED = runpy.run_path(str(Path(__file__).parents[2] / "common" / "tests" / "support" / "tracked_run.py"))
BLOCK, HEADER = 32 * 1024, 7


def play(directory: Path, options: WandbOptions) -> dict[str, int]:
    failures: dict[str, int] = PLAYED["play_interrupted_and_resumed"](directory, lambda it: WandbObserver(options, it))
    wandb.teardown()  # Its process writes the last records after `finish` has returned.
    return failures


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No account and no settings of this machine's user."""
    for name, value in {"HOME": tmp_path, "NETRC": tmp_path / "netrc", "WANDB_CONFIG_DIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield
    wandb.teardown()


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format behind a header of 7 bytes."""
    data, place, whole = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # full, last
            record = wandb_internal_pb2.Record.FromString(whole)
            whole = b""
            yield record


def items(message: Any) -> dict[str, Any]:
    return {"/".join(it.nested_key) or it.key: json.loads(it.value_json) for it in message}


def run_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)


def test_a_run_and_its_resume_are_one_run(tmp_path: Path) -> None:
    options = WandbOptions(project="agents", mode="offline", tags=["t"])
    assert play(tmp_path / "r", options) == {}
    files = run_files(tmp_path / "r")
    read = [[(it.WhichOneof("record_type"), it) for it in records(path)] for path in files]
    runs = [it.run for part in read for kind, it in part if kind == "run"]
    assert {(it.run_id, it.project, it.display_name) for it in runs} == {(runs[0].run_id, "agents", "r")}
    kept = json.loads((tmp_path / "r" / "trackers.json").read_text())
    assert kept == {"wandb": runs[0].run_id}
    history = [[items(it.history.item) for kind, it in part if kind == "history"] for part in read]
    assert [[row["step"] for row in part] for part in history] == [[1, 2], [2, 2]]
    assert history[0][1]["train/reward/mean"] == 0.5
    assert history[1][0]["train/reward/mean"] == 0.75, "a step that the resumed run repeats isn't dropped"
    assert history[1][1]["eval/pass@8"] == 1.0
    assert [it.exit.exit_code for part in read for kind, it in part if kind == "exit"] == [1, 1]
    updates = [items(it.summary.update) for kind, it in read[1] if kind == "summary"]
    summary = {key: value for update in updates for key, value in update.items()}
    assert summary["status"] == "failed"
    assert summary["error"] == "ValueError: out of memory"
    config = {
        key: value
        for kind, it in read[1]
        if kind in ("run", "config")
        for key, value in items((it.run.config if kind == "run" else it.config).update).items()
    }
    assert config["seed"] == 4
    assert config["engine"] == {"options": {"api_key": "***"}}
    assert config["environments"] == {"default": {"tools": [{"use": "add"}]}}


def test_each_table_is_a_file_of_its_own(tmp_path: Path) -> None:
    options = WandbOptions(mode="offline", sample_every=2)
    play(tmp_path / "r", options)
    tables = [json.loads(path.read_text()) for path in (tmp_path / "r").rglob("*.table.json")]
    found = sorted((len(it["data"]), it["data"][0][0], it["data"][0][4]) for it in tables)
    assert [(rows, step) for rows, step, _ in found] == [(1, 2), (2, 1), (2, 2), (2, 2)]
    row = dict(zip(tables[0]["columns"], next(it for it in tables if len(it["data"]) == 1)["data"][0], strict=True))
    assert (row["prompt"], row["answer"], row["reward"], row["calls"]) == ("What is 2 + 3?", "5", 1.1, 1)
    assert "call:\n  add" in row["conversation"]


def test_a_server_that_is_not_there_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(observer, "INIT_SECONDS", 1.0)
    assert play(tmp_path / "r", WandbOptions(samples=0)) == {}
    assert len([it for it in caplog.messages if "training continues" in it]) == 2, "once a process"


def test_a_missing_key_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no API key") as raised:
        WandbOptions().check_files()
    assert "wandb login" in str(raised.value.hint)
    WandbOptions(mode="offline").check_files()
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(ConfigError, match="rejects the API key"):
        WandbOptions().check_files()
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    WandbOptions().check_files()
