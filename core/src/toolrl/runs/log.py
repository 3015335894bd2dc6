"""run.log: what a run's processes warn of, with the time, the level and the logger's name.

    2026-11-29T03:15:02Z WARNING toolrl.rollouts.source: …

Further lines of a record are indented, so that no text can look like a record. Values of `${NAME}` are left out, and
control characters are shown as marks. A full file is renamed to run.log.1, so the two hold the newest 2 to 4 MiB.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from toolrl.runs.files import open_regular
from toolrl.terminal_text import visible

NAME = "run.log"
OLDER = "run.log.1"
MOST_BYTES = 2 * 2**20
"""Size at which a file is full."""
MOST_CHARACTERS = 20_000
"""Characters of one record; the middle of a longer one is left out."""
_MOST_WAITING = 1000
"""Records that are kept until there is a file for them."""


class RunLog:
    """Appends records to a run's log. `add` never raises: a run must not end because its log can't be written."""

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        """`hide` takes secrets out of each record."""
        self._hide = hide
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._path: Path | None = None
        self._file: int | None = None
        self._size = 0

    def add(self, level: int, name: str, text: str) -> None:
        """Append a record; before `open`, keep it for the file."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        shown = visible(_shortened(self._hide(text))).rstrip().replace("\n", "\n  ")
        line = f"{when} {logging.getLevelName(level)} {visible(self._hide(name))}: {shown}\n".encode("utf-8", "replace")
        with self._lock, contextlib.suppress(OSError):
            if self._path is not None:
                self._write(line)
            elif len(self._waiting) < _MOST_WAITING:
                self._waiting.append(line)

    def open(self, directory: Path) -> None:
        """Write to the log of this run's folder from now on."""
        with self._lock, contextlib.suppress(OSError):
            self._path = directory / NAME
            self._begin()
            for line in self._waiting:
                self._write(line)
            self._waiting.clear()

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file, self._path = None, None

    def _begin(self) -> None:
        assert self._path is not None
        # Neither a link nor a pipe is followed: a run's folder may come from elsewhere.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self._path, flags, 0o644)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            return
        self._file, self._size = file, os.fstat(file).st_size

    def _write(self, line: bytes) -> None:
        if self._file is None or self._path is None:
            return
        if self._size and self._size + len(line) > MOST_BYTES:
            os.close(self._file)
            self._file = None
            self._path.replace(self._path.with_name(OLDER))
            self._begin()
            if self._file is None:
                return
        self._size += os.write(self._file, line)


def read_log(directory: Path, most_bytes: int) -> str:
    """Read the last bytes of a run's log, from the start of a line; empty if there is none. Raises OSError, DataError."""
    path = directory / NAME
    if path.is_symlink() or not path.exists():
        return ""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - most_bytes))
        if start:
            file.readline()
        return file.read(most_bytes).decode("utf-8", "replace")


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
