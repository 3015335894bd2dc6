"""The log of a run: bounded, without secrets, and never a reason for a run to end."""

from __future__ import annotations

import logging
import os
import re
import warnings
from pathlib import Path

import pytest

from toolrl.config.logs import masked_logs
from toolrl.errors import DataError
from toolrl.runs import log as module
from toolrl.runs.log import RunLog, read_log


def hide(text: str) -> str:
    return text.replace("s3cret", "${TOKEN}")


def opened(folder: Path) -> RunLog:
    log = RunLog(hide)
    log.open(folder)
    return log


def test_records_of_every_logger_have_time_level_and_name(tmp_path: Path) -> None:
    own = logging.getLogger("an.engine")
    own.propagate, own.level = False, logging.INFO
    log = RunLog(hide)
    with masked_logs(hide, log.add):
        logging.getLogger("toolrl.x").warning("before there is a folder: %s", "s3cret")
        log.open(tmp_path)
        own.info("loaded in 3 s")
        own.debug("left out")
        with pytest.warns(UserWarning):
            warnings.warn("old option", UserWarning, stacklevel=1)
    log.close()
    logging.getLogger("toolrl.x").warning("after the run")
    lines = read_log(tmp_path, 10_000).splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z WARNING toolrl\.x: before there is a folder: \$\{TOKEN\}", lines[0])
    assert lines[1].endswith("INFO an.engine: loaded in 3 s")
    assert len([line for line in lines if not line.startswith("  ")]) == 2


def test_tracebacks_are_indented_and_hold_no_secret(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with masked_logs(hide, log.add):
        try:
            raise ValueError("key s3cret\n2026-01-01T00:00:00Z ERROR toolrl: forged")
        except ValueError:
            logging.getLogger("toolrl.x").exception("a reward raised \x1b[2J")
    text = read_log(tmp_path, 10_000)
    assert "\n  Traceback" in text
    assert "${TOKEN}" in text
    assert not {"s3cret", "\x1b"} & set(re.findall(r"s3cret|\x1b", text))
    assert len(re.findall(r"^\S", text, re.MULTILINE)) == 1, "no text can look like a record"


def test_it_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 3000)
    log = opened(tmp_path)
    for number in range(500):
        log.add(logging.WARNING, "x", f"record {number}")
    log.add(logging.WARNING, "x", "y" * 100_000)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.log", "run.log.1"]
    assert all(path.stat().st_size <= 25_000 for path in tmp_path.iterdir())
    assert "80000 characters left out" in read_log(tmp_path, 100_000)
    assert "record 499" in (tmp_path / "run.log.1").read_text()


def test_a_resumed_run_goes_on_with_its_log_and_the_end_is_read(tmp_path: Path) -> None:
    for number in range(3):
        log = opened(tmp_path)
        log.add(logging.INFO, "x", f"record {number} " + "z" * 100)
        log.close()
    text = read_log(tmp_path, 200)
    assert "record 2" in text
    assert "record 1" not in text
    assert re.match(r"\d{4}-", text), "it begins with a whole line"


def test_what_is_no_file_is_neither_written_nor_read(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    for name, make in (("link", lambda it: it.symlink_to(tmp_path / "victim")), ("pipe", os.mkfifo)):
        folder = tmp_path / name
        folder.mkdir()
        make(folder / "run.log")
        log = opened(folder)
        log.add(logging.ERROR, "x", "text")
        log.close()
        if name == "link":
            assert read_log(folder, 100) == ""
        else:
            with pytest.raises(DataError):
                read_log(folder, 100)
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_log_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    log = RunLog()
    log.open(tmp_path / "missing")
    log.add(logging.ERROR, "x", "text")
    log.close()
    assert read_log(tmp_path, 100) == ""
