"""Files that survive a kill: written beside their place and renamed into it, and one writer a folder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError, DataError
from toolrl.plugins.info import PYTHON_OBJECTS

MOST_BYTES = 64 * 2**20
MOST_LINE = 256 * 2**20
"""A line is an episode at most; one of a million tokens takes some 40 MiB. Compressed, a file of any size is small."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path into an OSError that has none: a write to a full disk says only that there is no space left."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomic(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace a file as a whole: a reader sees the old content or the new, never a part.

    `durable` waits until the content is on the disk, so that it outlives a power failure too. A device or a pipe, such
    as /dev/stdout, is written to and not replaced. Raises OSError, also for a pipe that nobody reads.
    """
    if path.exists() and not path.is_file():
        # Without O_NONBLOCK a pipe without a reader would be waited for.
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(handle, True)
        with naming(path), open(handle, "wb") as file:  # noqa: PTH123
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # The first error says more.
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until a rename or a new file in this folder is on the disk. Does nothing where folders can't be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def json_line(record: Any) -> bytes:
    """One line of a .jsonl file, its newline included."""
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair: only an escape can hold it
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A file of a run's folder, for reading. Raises DataError if it is a pipe, a device or a folder: a run's folder may
    come from elsewhere, and a pipe would be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DataError("not a regular file", where=str(path))
        yield file


def read_small(path: Path) -> bytes:
    """The content of a file that is read whole, such as a config or a summary. Raises DataError above 64 MiB."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(f"file is larger than {MOST_BYTES >> 20} MiB", where=str(path))
    return content


def read_json(text: str | bytes) -> Any:
    """A JSON text's value. Raises ValueError, also for one that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_config(path: Path) -> dict[str, Any]:
    """A run's config. Raises DataError."""
    try:
        config = parse_yaml(read_small(path).decode("utf-8"), str(path))[0] or {}
        if not isinstance(config, dict):
            raise ValueError(f"it holds a {type(config).__name__}, not a mapping")
    except (ConfigError, ValueError) as error:
        raise DataError(f"the run's config can't be read: {error}", where=str(path)) from error
    return config


def read_versions(directory: Path) -> dict[str, Any]:
    """Read a run's plugins.json; empty where it is missing. Raises DataError."""
    path = directory / "plugins.json"
    try:
        return dict(read_json(read_small(path))) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise DataError(f"not JSON: {error}", where=str(path), hint="Delete it to continue without it.") from error


def names_objects(directory: Path) -> bool:
    """Whether a run's config names Python objects, which only a call from Python can give again."""
    return PYTHON_OBJECTS in (read_versions(directory).get("plugins") or {})


def plain_float(value: float) -> float | str:
    """A number as JSON can hold it: what isn't finite becomes "nan", "inf" or "-inf", which `float` reads again."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def raw_lines(file: IO[bytes], where: str) -> Iterator[bytes]:
    """The lines of a file, which may be a compressed one. Raises DataError at one of more than 256 MiB."""
    for number, line in enumerate(iter(lambda: file.readline(MOST_LINE + 1), b""), start=1):
        if len(line) > MOST_LINE:
            raise DataError(f"line is longer than {MOST_LINE >> 20} MiB", where=f"{where}:{number}")
        yield line


def read_lines(file: IO[bytes], where: str) -> Iterator[Any]:
    """The values of a .jsonl file. A last line that a kill tore is left out; any other bad line is a DataError, as is
    one of more than 256 MiB."""
    broken: tuple[int, ValueError] | None = None
    for number, line in enumerate(raw_lines(file, where), start=1):
        if broken is not None:
            raise DataError(f"this line isn't JSON: {broken[1]}", where=f"{where}:{broken[0]}")
        if not line.strip():
            continue
        try:
            record = read_json(line)
        except ValueError as error:
            broken = (number, error)
        else:
            yield record


class AppendedFile:
    """A file that takes whole lines: one that finds no room leaves nothing of itself behind."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """`anew` empties the file first. Raises OSError."""
        self._path = path
        self._file = path.open("wb" if anew else "ab", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)

    def append(self, line: bytes) -> None:
        """Write a line, so that it outlives a kill of this process. Raises OSError."""
        left = memoryview(line)
        try:
            with naming(self._path):
                while left:
                    left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):  # The first error says more; a torn last line is left out by readers.
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        self._file.close()


class FolderLock:
    """Held by the one process that writes a folder; the system releases it when the process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        """False where another process holds it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._handle is not None

    def in_place(self) -> bool:
        """Whether the file that this object holds is still at its path: a folder may be moved or deleted meanwhile."""
        if self._handle is None:
            return True
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._handle)
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def held_elsewhere(self) -> bool:
        """True where a living process writes this folder."""
        if self._handle is not None or not self._path.exists():
            return False
        handle = os.open(self._path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
