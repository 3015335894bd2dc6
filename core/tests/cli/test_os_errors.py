"""What the operating system refuses is a message with its path and a hint, of whatever command, and no traceback."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli import status
from toolrl.cli.main import EXIT_ERROR, main
from toolrl.runs.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run", {}, total_steps=1)
    folder.begin()
    return folder.directory


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command that fails says."""
    assert main(list(map(str, words))) in (1, 2)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.startswith("error: ")
    return err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", b"/data/x"), "/data/x: Permission denied\n"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"), "/a → /b: Invalid cross-device link"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused\n"),
        (TimeoutError("it took too long"), "TimeoutError: it took too long\n  → `toolrl --debug …` shows"),
    ],
)
def test_any_error_of_the_system(
    error: OSError, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(_: Any) -> int:
        raise error

    monkeypatch.setattr(status, "run", raises)
    assert line in said(capsys, "status", "x")
    assert main(["status", "x", "--json"]) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["fault"] == "system"
    assert not err
    main(["--debug", "status", "x"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("redirection", "code"), [(">/dev/full", EXIT_ERROR), (">&-", 0), (">/dev/full 2>/dev/full", EXIT_ERROR)]
)
def test_output_that_can_not_be_written(redirection: str, code: int) -> None:
    command = f"{sys.executable} -m toolrl list-plugins {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if redirection == ">/dev/full":
        assert "No space left on device" in done.stderr
