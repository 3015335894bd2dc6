"""`toolrl report` from the command line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext, StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.recorder import RunRecorder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _run(tmp_path / "first")


def _run(path: Path) -> Path:
    folder = RunFolder.create(path, {}, total_steps=2)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    for step in (1, 2):
        recorder.toolrl_step_end(folder, StepReport(step, "train", {"accuracy": step / 4}))
    recorder.toolrl_run_end(folder, None)
    return path


def test_it_writes_into_the_run_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == ["first: finished, 2 of 2 steps", str(run / "report.html")]
    assert "</html>" in (run / "report.html").read_text()


def test_json_gives_the_path_and_the_summary(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "page.html"
    assert main(["report", str(run), "--output", str(output), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["report"] == str(output)
    assert facts["bytes"] == output.stat().st_size
    assert facts["summary"]["metrics"]["train"]["accuracy"]["best"] == 0.5


def test_compare_puts_other_runs_beside_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second, third = _run(tmp_path / "second"), _run(tmp_path / "elsewhere" / "first")
    assert main(["report", str(run), "--compare", str(second), "--compare", str(third), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"] == [str(second), str(third)]
    page = (run / "report.html").read_text()
    assert "Comparison" in page
    assert "elsewhere/first" in page  # two runs of one name are told apart by their folders


def test_an_output_that_is_a_folder_is_wrong_usage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--output", str(run)]) == 2
    assert "--output report.html" in capsys.readouterr().err


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command that fails says."""
    assert main(list(map(str, words))) in (1, 2)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.startswith("error: ")
    return err


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path whose parent is a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "inside"


def test_a_report_that_can_not_be_written(run: Path, blocked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{blocked.parent}: File exists" in said(capsys, "report", run, "--output", blocked)
    assert "/proc/nothing: No such file or directory" in said(capsys, "report", run, "--output", "/proc/nothing/r.html")
    (run / "report.html").mkdir()
    assert f"{run / 'report.html'}: Is a directory" in said(capsys, "report", run)


def test_the_error_of_the_write_is_the_one_that_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", refuses)
    monkeypatch.setattr(Path, "unlink", lambda path, **_: refuses(Path("unlinked")))
    err = said(capsys, "report", run)
    assert "Read-only file system" in err
    assert "unlinked" not in err


def test_a_device_is_written_to_and_not_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--output", "/dev/null"]) == 0
    assert not Path("/dev/null").is_file()
    assert "No space left" in said(capsys, "report", run, "--output", "/dev/full")
    assert not Path("/dev/full").is_file()


def test_the_observer_writes_the_page_of_any_run_at_its_end(run: Path) -> None:
    component = load_registry().get("observers", "report").component
    assert component.every_run
    observer = component.load()(None, BuildContext("report"))
    observer.toolrl_run_end(RunFolder.open(run), ValueError("bad"))
    assert "</html>" in (run / "report.html").read_text()


@pytest.mark.parametrize("output", [[], ["--output", "other.html"]])
def test_a_report_that_cannot_be_written_says_how_else_to_see_it(
    run: Path, output: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("toolrl_plugin_report.page.write_atomic", read_only)
    assert main(["report", str(run), *output]) == 1
    said = capsys.readouterr().err
    assert "Read-only file system" in said
    assert ("--output FILE" in said) == (not output)
    assert (str(run / "report.html") in said) == (not output)
