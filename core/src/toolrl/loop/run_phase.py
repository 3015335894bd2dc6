"""What a run is busy with, for whoever asks while it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Doing:
    """One thing at a time, and since when."""

    def __init__(self) -> None:
        self.what = "starting"
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """For so long."""
        return time.monotonic() - self._since

    def now(self, what: str) -> None:
        """It is busy with this."""
        self.what, self._since = what, time.monotonic()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """It is busy with this until the end, and then with what it was busy with before."""
        before = self.what
        self.now(what)
        try:
            yield
        finally:
            self.now(before)
