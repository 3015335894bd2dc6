"""The state of a run's data: whether a file is still the one that the run began with, and digests by which a resumed
run notices other data.

A digest covers all bytes of small files and evenly spread blocks of large ones, so that it costs a fraction of a second
for 100 GB too. Rows in memory are covered row by row, of very many an even selection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from toolrl.errors import DataError

DIGEST_BYTES = 256 * 2**20
"""Bytes of a data set's files that its digest reads at most, but for a block of each file."""
DIGEST_ROWS = 10_000
"""Rows in memory that a digest covers at most."""
_BLOCK = 2**16


class _Facts(NamedTuple):
    """Facts about a file that change when it is written or replaced."""

    size: int
    modified: int
    changed: int
    device: int
    inode: int


class WatchedFile:
    """A data file, as it was when this object was made."""

    def __init__(self, path: Path, budget: int) -> None:
        """`budget`: bytes of the file that its digest may read. Raises DataError for a file that can't be read."""
        self._path = path
        self._budget = budget
        try:
            self._facts = self._look()
            self.digest = self._digest()
        except OSError as error:
            raise self._unreadable(error) from error

    def check(self) -> None:
        """Raises DataError if the file was changed, replaced or deleted. One that was touched or copied over itself
        holds the same bytes and is the same."""
        try:
            facts = self._look()
            if facts == self._facts:
                return
            # An inode or a device may change by itself on a network or FUSE file system; a time by `touch`.
            # Of a large file the digest covers blocks alone, so its time of change has to be the same.
            known = facts.size <= self._budget or facts.modified == self._facts.modified
            if known and facts.size == self._facts.size and self._digest() == self.digest:
                self._facts = facts
                return
            what = "changed"
        except FileNotFoundError:
            what = "deleted"
        except OSError as error:
            raise self._unreadable(error) from error
        raise DataError(
            f"the file was {what} during the run",
            where=str(self._path),
            hint="Put it back as it was and go on with --resume; write other data to another file.",
        )

    def _look(self) -> _Facts:
        found = self._path.stat()
        return _Facts(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino)

    def _digest(self) -> str:
        """A digest of the size and of all bytes, or of evenly spread blocks, the first and the last among them."""
        size = self._facts.size
        found = blake2b(str(size).encode(), digest_size=16)
        with self._path.open("rb") as file:
            if size <= self._budget:
                while block := file.read(2**20):
                    found.update(block)
            else:
                last = size - min(_BLOCK, size)
                for place in spread(last + 1, max(self._budget // _BLOCK, 2)):
                    file.seek(place)
                    found.update(file.read(_BLOCK))
        return found.hexdigest()

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"can't be read: {error.strerror}", where=str(self._path))


def rows_digest(count: int, rows_at: Callable[[Sequence[int]], Iterable[Any]]) -> str:
    """A digest of rows in memory: of their number, and of the values of up to DIGEST_ROWS of them."""
    found = blake2b(str(count).encode(), digest_size=16)
    for row in rows_at(spread(count, DIGEST_ROWS)):
        try:
            text = json.dumps(_plain_keys(row), sort_keys=True, default=_plain)
        except (ValueError, RecursionError) as error:
            text = type(error).__name__
        found.update(f"{len(text)}:{text}".encode())
    return found.hexdigest()


def each_row(row: Callable[[int], Any], indices: Sequence[int]) -> Iterator[Any]:
    """The rows at these indices; for one that can't be read the name of its error."""
    for index in indices:
        try:
            yield row(index)
        except DataError as error:
            yield type(error).__name__


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the indices 0 … count − 1, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // (most - 1) for number in range(most)]


def _plain_keys(value: Any) -> Any:
    """The value with texts as the keys of its dicts: JSON sorts no mixed keys."""
    if isinstance(value, dict):
        return {str(key): _plain_keys(item) for key, item in value.items()}
    return [_plain_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """A value that JSON has no form for, in one that is the same in each process."""
    if isinstance(value, bytes):
        return blake2b(value, digest_size=16).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain_keys(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, date | Decimal | os.PathLike):
        return str(value)
    return type(value).__name__  # Its text may hold an address in memory.
