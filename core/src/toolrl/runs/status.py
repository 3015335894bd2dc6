"""The status of a run: a small file of its folder, `.status.json`, which `toolrl status` reads.

The process that writes the run replaces the file as a whole every few seconds, and deletes it at the end: a finished
run has its summary.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.files import read_json, read_small, write_atomic

NAME = ".status.json"
EVERY = 2.0
"""Seconds."""

_log = logging.getLogger(__name__)


class RunPhase:
    """The phase that a run is in, and for how long."""

    def __init__(self, notify: Callable[[str, int], None] = lambda name, episodes: None) -> None:
        """`notify` receives the name of each phase that begins, and the number of episodes that it samples."""
        self.name, self._episodes = "starting", 0
        self._since = time.monotonic()
        self._notify = notify

    @property
    def seconds(self) -> float:
        """Since the phase began."""
        return time.monotonic() - self._since

    def begin(self, name: str, episodes: int = 0) -> None:
        """A new phase begins, which samples so many episodes."""
        self.name, self._episodes, self._since = name, episodes, time.monotonic()
        self._notify(name, episodes)

    @contextmanager
    def during(self, name: str, episodes: int = 0) -> Iterator[None]:
        """A phase within the present one, which is restored after it."""
        before = self.name, self._episodes
        self.begin(name, episodes)
        try:
            yield
        finally:
            self.begin(*before)


@asynccontextmanager
async def status_file(directory: Path, gather: Callable[[], Mapping[str, Any]]) -> AsyncIterator[None]:
    """While this is entered the folder's status file holds what `gather` returns, as JSON values; then it is deleted.
    Nothing is written while there is no folder."""
    path = directory / NAME

    def write() -> None:
        if not directory.is_dir():
            return
        try:
            facts = {"time": time.time(), "pid": os.getpid(), **gather()}
            write_atomic(path, json.dumps(facts, default=str), durable=False)
        except Exception as error:  # noqa: BLE001 - a status that can't be written must not end the run
            _log.debug("the run's status can't be written: %s", error)

    async def keep() -> None:
        while True:
            write()
            await asyncio.sleep(EVERY)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        path.unlink(missing_ok=True)


def read_status(directory: Path) -> dict[str, Any] | None:
    """The run's last status; None where it isn't running. Raises DataError."""
    path = directory / NAME
    try:
        facts = read_json(read_small(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(facts, dict):
        raise DataError(f"expected an object (got {type(facts).__name__})", where=str(path))
    return facts
