"""Names of runs: which ones are free, and which run in a folder is the newest.

`toolrl train` and `sft` use the config's `run.name`. `toolrl eval` and `rollout` make runs of their own beside it, such as
`first-eval`, numbered when that name is taken: `first-eval-2`, `first-eval-3`.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from toolrl.errors import DataError, ToolrlError
from toolrl.runs.contents import is_idle, is_leftover, unwritable
from toolrl.runs.files import FolderLock
from toolrl.runs.folder import RunFolder, is_run_folder

RUNS = Path("runs")
"""The folder of runs where a command is given none."""


def free_name(directory: Path, base: str) -> str:
    """`base`, or the first of `base-2`, `base-3`, … that no run in `directory` holds now."""
    return next(name for name in _candidates(base) if _is_free(directory / name))


@contextlib.contextmanager
def reserved(directory: Path, base: str) -> Iterator[tuple[str, FolderLock]]:
    """Reserve a free name for this process: the name, and the lock of its folder. A folder that is still empty at the
    end is deleted. Raises ToolrlError where the folder can't be written."""
    name, lock = _reserve(directory, base)
    path = directory / name
    try:
        yield name, lock
    finally:
        with contextlib.suppress(OSError):
            if [file.name for file in path.iterdir()] == [".lock"]:
                (path / ".lock").unlink()
                path.rmdir()
        lock.release()


def _reserve(directory: Path, base: str) -> tuple[str, FolderLock]:
    for name in _candidates(base):
        path = directory / name
        if not _is_free(path):
            continue
        lock = FolderLock(path / ".lock")
        try:
            path.mkdir(parents=True, exist_ok=True)
            locked = lock.acquire()
        except FileNotFoundError:
            continue  # Another process deleted the folder that it had reserved.
        except OSError as error:
            raise unwritable(path, str(error.strerror or error)) from error
        # Another process may have used the folder, or deleted it, before it was locked here.
        if locked and lock.in_place() and _is_free(path, locked=True):
            return name, lock
        lock.release()
    raise AssertionError("the numbers of names have no end")


def _candidates(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}-{number}" for number in count(2))


def _is_free(path: Path, *, locked: bool = False) -> bool:
    """Whether a new run may take this folder: there is nothing in it that took work, and nobody writes it. `locked`:
    this process holds its lock."""
    if not path.exists():
        return not path.is_symlink()
    if not path.is_dir() or (not locked and FolderLock(path / ".lock").held_elsewhere()):
        return False
    return is_idle(path) if is_run_folder(path) else all(map(is_leftover, path.iterdir()))


def check_there(directory: Path) -> None:
    """Raises ToolrlError where there is no run to resume; the hint names the run with the most similar name."""
    if is_run_folder(directory):
        return
    beside = [path.name for path in find_runs(directory.parent)] if directory.parent.is_dir() else []
    near = difflib.get_close_matches(directory.name, beside, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    hint = f"{meant}Leave --resume out to start it; --resume-if-exists starts or continues a run."
    raise ToolrlError("there is no run to resume", where=str(directory), hint=hint)


def find_runs(folder: Path) -> Iterator[Path]:
    """The runs in a folder, at any depth, or the folder itself where it is one."""
    for directory, inside, _ in os.walk(folder):
        path = Path(directory)
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        if is_run_folder(path) and (path / "plugins.json").is_file():
            inside.clear()
            yield path


def date_of(run: Path) -> str:
    """When a run started, in UTC; of one that didn't get that far, when its config was written."""
    with contextlib.suppress(DataError):
        if started := RunFolder.open(run).summary().get("started"):
            return str(started)
    written = (run / "config.yaml").stat().st_mtime
    return datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def newest_run(folder: Path = RUNS) -> Path:
    """The run that started last. Raises DataError where there is none."""
    found = [*find_runs(folder)]
    if not found:
        raise DataError("no run here", where=str(folder), hint="Name a run folder, such as runs/first.")
    return max(found, key=date_of)
