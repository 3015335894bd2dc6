"""What tools and rewards print, while episodes run.

Standard output is the command's, which may write JSON there, so prints of components go to standard error. They often
hold what a model wrote: control characters become visible, so that it can't steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from toolrl.terminal_text import visible
from toolrl.tools.loop_watch import in_component


class _PrintStream:
    """A standard stream, and another one for the prints of components."""

    def __init__(self, stream: IO[str], prints: IO[str], is_print: Callable[[], bool] = in_component) -> None:
        self._stream = stream
        self._prints = prints
        self._is_print = is_print

    def write(self, text: str) -> int:
        if not self._is_print():
            return self._stream.write(text)
        self._prints.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_all_prints_visible() -> None:
    """In a process whose prints are all a tool's."""
    streams: list[Any] = [_PrintStream(stream, sys.stderr, lambda: True) for stream in (sys.stdout, sys.stderr)]
    sys.stdout, sys.stderr = streams


@contextmanager
def visible_prints() -> Iterator[None]:
    """Around episodes, any number at once: only the outermost does something."""
    out, err = sys.stdout, sys.stderr
    if out is None or err is None or isinstance(out, _PrintStream) or isinstance(err, _PrintStream):
        yield
        return
    ours: dict[str, Any] = {"stdout": _PrintStream(out, err), "stderr": _PrintStream(err, err)}
    sys.stdout, sys.stderr = ours["stdout"], ours["stderr"]
    try:
        yield
    finally:
        for name, before in (("stdout", out), ("stderr", err)):
            if getattr(sys, name) is ours[name]:
                setattr(sys, name, before)
