"""Names of runs: the free ones, reserved by one process at a time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from toolrl.errors import DataError, ToolrlError
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.names import check_there, date_of, free_name, newest_run, reserved


def add(path: Path, *, works: bool = True, started: str | None = None) -> Path:
    folder = RunFolder.create(path, {}, total_steps=0, kind="eval")
    if works:
        folder.metrics.append(StepReport(0, "eval", {"accuracy": 0.5}), 1)
    if started is not None:
        folder.write_summary({"status": "finished", "started": started})
    folder.close()
    return path


def test_names_that_are_taken_are_numbered(tmp_path: Path) -> None:
    assert free_name(tmp_path, "a-eval") == "a-eval"
    add(tmp_path / "a-eval")
    (tmp_path / "a-eval-2").write_text("a file")
    (tmp_path / "a-eval-3").mkdir()
    (tmp_path / "a-eval-3" / "notes.txt").write_text("mine")
    assert free_name(tmp_path, "a-eval") == "a-eval-4"
    add(tmp_path / "a-eval-4", works=False)
    assert free_name(tmp_path, "a-eval") == "a-eval-4", "a run that did nothing holds no name"


def test_commands_at_once_get_different_names(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(reserved(tmp_path / "runs", "a-eval"))[0] for _ in range(3)]
        assert names == ["a-eval", "a-eval-2", "a-eval-3"]
        assert free_name(tmp_path / "runs", "a-eval") == "a-eval-4"
    assert not any((tmp_path / "runs").iterdir()), "unused names are given back"


def test_a_reserved_name_becomes_a_run(tmp_path: Path) -> None:
    with reserved(tmp_path, "a-eval") as (name, lock):
        folder = RunFolder.create(tmp_path / name, {"a": 1}, total_steps=0, kind="eval", lock=lock)
        assert folder.is_live()
        folder.close()
    assert RunFolder.open(tmp_path / "a-eval").config == {"a": 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ToolrlError, match="can't be written"), reserved(tmp_path, "a-eval"):
        pass


def test_a_missing_run_is_not_resumed(tmp_path: Path) -> None:
    add(tmp_path / "never")
    check_there(tmp_path / "never")
    with pytest.raises(ToolrlError, match="no run to resume") as caught:
        check_there(tmp_path / "nevr")
    assert "'never'" in str(caught.value.hint)
    assert "--resume-if-exists" in str(caught.value.hint)


def test_the_newest_run_started_last(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run"):
        newest_run(tmp_path)
    add(tmp_path / "b", started="2026-11-24T10:00:00+00:00")
    add(tmp_path / "a", started="2026-11-23T10:00:00+00:00")
    failed = add(tmp_path / "c", works=False)
    os.utime(failed / "config.yaml", (1.0e9, 1.0e9))
    assert newest_run(tmp_path) == tmp_path / "b"
    assert date_of(failed).startswith("2001-09-09")
