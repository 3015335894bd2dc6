"""A program on a pseudo-terminal, and what a user sees of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte


class Terminal:
    """Starts a command on a terminal of so many columns, 24 lines and a scrollback."""

    def __init__(
        self, command: Sequence[str], cwd: Path, columns: int = 100, env: Mapping[str, str] | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**clean, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C becomes a signal.
        )
        os.close(slave)
        self._screen = pyte.HistoryScreen(columns, 24, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        """All that was written."""

    def wait_for(self, text: str, seconds: float = 300.0) -> str:
        """The scrollback and the screen as soon as they hold a text."""
        until = time.monotonic() + seconds
        while text not in self.text and time.monotonic() < until and self._read():
            pass
        assert text in self.text, f"no {text!r} within {seconds:.0f} s, or before the end:\n{self.text}"
        return self.text

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def end(self, seconds: float = 300.0) -> int:
        """Read to the end: the exit status."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._read():
            pass
        os.close(self._master)
        return self.process.wait(10)

    @property
    def text(self) -> str:
        """The lines of the scrollback and of the screen."""
        above = [
            "".join(line[x].data for x in range(self._screen.columns)).rstrip() for line in self._screen.history.top
        ]
        return "\n".join([*above, *(line.rstrip() for line in self._screen.display)]).rstrip()

    def _read(self) -> bool:
        """Take what has come; False at the end."""
        if not select.select([self._master], [], [], 1.0)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that the other end is closed.
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
