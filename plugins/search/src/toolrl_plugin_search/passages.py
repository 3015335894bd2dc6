"""Passages: read from corpus files, kept in an index's folder, found again by number.

A corpus is JSON Lines, also compressed (`.gz`). A row has `contents`, whose first line is the title, as in Search-R1;
or `title` and `text`, which become such contents. `id` (or `_id`) names it; a row without one is named by its number.
"""

from __future__ import annotations

import gzip
import json
import mmap
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from toolrl.errors import DataError

LINES = "passages.jsonl"
STARTS = "passages.starts.npy"


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of a corpus."""

    id: str
    contents: str
    """The first line is the title."""

    @property
    def title(self) -> str:
        """The first line, without the quotation marks around it."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """What follows the title; the whole where there is one line only."""
        head, _, rest = self.contents.partition("\n")
        return rest or head

    def document(self) -> dict[str, str]:
        """As the retrieval API has it."""
        return {"id": self.id, "contents": self.contents}


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    score: float


def read_corpus(paths: Sequence[Path]) -> Iterator[Passage]:
    """The passages of corpus files, in order. Raises DataError with the file and line."""
    number = 0
    for path in paths:
        try:
            with _open(path) as file:
                for line_number, line in enumerate(file, 1):
                    if line.isspace():
                        continue
                    yield _passage(line, f"{path}:{line_number}", number)
                    number += 1
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"can't be read: {error}", where=str(path)) from error


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _passage(line: bytes, where: str, number: int) -> Passage:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", where=where, hint="Each line has to be one JSON object.") from None
    if not isinstance(row, dict):
        raise DataError(f"a row is {type(row).__name__}, expected an object", where=where)
    contents = row.get("contents")
    if contents is None and isinstance(row.get("text"), str):
        title = row.get("title")
        contents = f'"{title}"\n{row["text"]}' if isinstance(title, str) and title else row["text"]
    if not isinstance(contents, str) or not contents.strip():
        raise DataError(
            f"a passage needs a text `contents`, or `text` and maybe `title`; the row has: {', '.join(row)}",
            where=where,
        )
    name = row.get("id", row.get("_id"))
    return Passage(sound(str(number) if name is None else str(name)), sound(contents))


def sound(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can hold and UTF-8 can't."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def passage_writer(folder: Path) -> Iterator[Callable[[Passage], None]]:
    """A function that appends a passage to those in an index's folder."""
    starts = array("q", [0])
    with (folder / LINES).open("wb") as file:

        def add(passage: Passage) -> None:
            line = json.dumps([passage.id, passage.contents], ensure_ascii=False).encode("utf-8") + b"\n"
            file.write(line)
            starts.append(starts[-1] + len(line))

        yield add
    np.save(folder / STARTS, np.asarray(starts, dtype=np.int64))


class PassageStore:
    """The passages of an index, read from disk when they are asked for. May be used from several threads."""

    def __init__(self, folder: Path) -> None:
        self._starts: Any = np.load(folder / STARTS, mmap_mode="r")
        with (folder / LINES).open("rb") as file:
            # An empty file can't be mapped, and has nothing to be read.
            empty = len(self) == 0
            self._lines = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> Passage:
        if self._lines is None or not 0 <= number < len(self):
            raise IndexError(f"passage {number} of {len(self)}")
        line = self._lines[int(self._starts[number]) : int(self._starts[number + 1])]
        name, contents = json.loads(line)
        return Passage(name, contents)


class Index(ABC):
    """An index on disk. May be used from several threads at once."""

    kind: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.passages = PassageStore(folder)

    def __len__(self) -> int:
        return len(self.passages)

    @abstractmethod
    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The best passages of each query, the best first, at most `topk`."""
