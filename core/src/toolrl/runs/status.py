"""What a run does now, in a small file of its folder: `.status.json`, which `toolrl status` reads.

The process that writes the run replaces the file as a whole every few seconds. It says nothing that is kept: a run that
is over has its summary.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.files import read_json, write_atomic

NAME = ".status.json"
EVERY = 2.0
"""Seconds."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def told_status(directory: Path, gather: Callable[[], Mapping[str, Any]]) -> AsyncIterator[None]:
    """While this is entered the folder's status file says what `gather` gives, as JSON values; then it is deleted.
    Nothing is said while there is no folder."""
    path = directory / NAME
    failed = False

    def write() -> None:
        nonlocal failed
        if not directory.is_dir():
            return
        try:
            facts = {"time": time.time(), "pid": os.getpid(), **gather()}
            write_atomic(path, json.dumps(facts, default=str), durable=False)
        except Exception as error:  # noqa: BLE001 - a status that can't be told must not end the run
            if not failed:
                _log.warning("the run's status can't be written: %s", error)
            failed = True

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
    """What the run last said, None where it says nothing now. Raises DataError."""
    path = directory / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        facts: dict[str, Any] = read_json(text)
    except ValueError as error:
        raise DataError(f"not JSON: {error}", where=str(path)) from error
    return facts
