"""What is logged while a run is on holds no secret."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolrl.config.logs import masked_logs


def hide(text: str) -> str:
    return text.replace("s3cret", "${TOKEN}")


@pytest.fixture
def written() -> Iterator[Callable[[], str]]:
    """What a plain handler of some library's logger wrote."""
    stream, logger = io.StringIO(), logging.getLogger("some.library")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    yield stream.getvalue
    logger.removeHandler(handler)


def test_messages_and_arguments(written: Callable[[], str]) -> None:
    with masked_logs(hide):
        logging.getLogger("some.library").warning("asked %s %d times", "https://x?key=s3cret", 3)
    assert written() == "asked https://x?key=${TOKEN} 3 times\n"


def test_tracebacks(written: Callable[[], str]) -> None:
    with masked_logs(hide):
        try:
            raise ValueError("no such key: s3cret")
        except ValueError:
            logging.getLogger("some.library").exception("a release raised")
    text = written()
    assert "no such key: ${TOKEN}" in text
    assert "Traceback" in text
    assert "s3cret" not in text


def test_afterwards_all_is_as_before(written: Callable[[], str]) -> None:
    before = logging.getLogRecordFactory()
    with masked_logs(hide), masked_logs(str):
        pass
    assert logging.getLogRecordFactory() is before
    logging.getLogger("some.library").warning("s3cret")
    assert written() == "s3cret\n"


class Bad:
    def __del__(self) -> None:
        raise ValueError("deleted with s3cret")


def test_warnings_and_exceptions_that_nobody_catches(capfd: pytest.CaptureFixture[str]) -> None:
    """In a process of its own: pytest replaces the same hooks."""
    code = """
import threading, warnings
from test_masked_logs import Bad, hide
from toolrl.config.logs import masked_logs

def fail():
    raise ValueError("in a thread with s3cret")

with masked_logs(hide):
    warnings.warn("warned of s3cret")
    thread = threading.Thread(target=fail, name="reader of s3cret")
    thread.start()
    thread.join()
    Bad()
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
    text = capfd.readouterr().err
    for expected in ("warned of ${TOKEN}", "in a thread with ${TOKEN}", "reader of ${TOKEN}", "deleted with ${TOKEN}"):
        assert expected in text
    assert "s3cret" not in text
