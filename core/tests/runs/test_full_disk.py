"""Errors of a disk that takes nothing more: each names the file that couldn't be written."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolrl.protocols import StepReport
from toolrl.runs.files import AppendedFile, write_atomic
from toolrl.runs.folder import RunFolder


@contextmanager
def no_room() -> Iterator[None]:
    """Every write to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITES: dict[str, Callable[[Path, RunFolder], object]] = {
    "a new run": lambda path, _: RunFolder.create(path / "new", {"a": 1}, total_steps=2),
    "a whole file": lambda path, _: write_atomic(path / "summary.json", "x"),
    "a line": lambda path, _: AppendedFile(path / "episodes").append(b"x"),
    "metrics": lambda _, run: run.metrics.append(StepReport(1, "train", {"accuracy": 1.0})),
    "tokens": lambda _, run: run.add_tokens({1: "a"}),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_room_names_its_file(name: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {}, total_steps=2)
    with no_room(), pytest.raises(OSError, match=str(tmp_path)) as error:
        WRITES[name](tmp_path, run)
    assert Path(error.value.filename).is_relative_to(tmp_path)


def test_a_device_that_is_full_is_named() -> None:
    with pytest.raises(OSError, match="/dev/full"):
        write_atomic(Path("/dev/full"), "x")
