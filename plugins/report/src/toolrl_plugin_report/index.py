"""The index of a run's episodes: the rows of each file, kept in `episodes/index/` beside the files.

An index is two lines: what it was made of, with sums over the file's episodes, and the rows as a JSON list, which is
served as it stands. Beside it lies a compressed file with the texts of each episode on a line, which a search reads.
The observer writes it when a step ends; where it is missing or older than its file, it is made
from the file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.episodes import MEMBER_EPISODES, EpisodeFile
from toolrl.runs.files import open_regular, raw_lines, read_json, read_small, write_atomic
from toolrl.runs.records import StoredEpisode, episode_from_json
from toolrl_plugin_report.sample import Totals, whole_characters
from toolrl_plugin_report.view import COLUMNS, row, said, set_advantages

TEXTS = ".text.gz"
"""Ending of the file of texts."""
MOST_TEXT = 4 * 2**30
"""Bytes of texts that a search reads of one file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileIndex:
    """What an index says of one file."""

    stamp: list[int]
    """Size and time of change of the file."""
    totals: Totals
    rows: str
    """A JSON list of rows, by `view.COLUMNS`."""
    members: list[int]
    """Where the gzip members of `MEMBER_EPISODES` episodes start; empty where the file has other members."""
    texts: bytes | Path = field(default=b"", compare=False)
    """What each episode says, a line each, compressed; or the file that holds it."""

    def lines_with(self, wanted: bytes) -> list[int]:
        """The places of the episodes whose texts hold `wanted`, which is in lower case. Raises OSError, EOFError,
        zlib.error, DataError."""
        if not self.texts:
            return []
        where = str(self.texts) if isinstance(self.texts, Path) else "texts"
        found, left = [], MOST_TEXT
        with open_regular(self.texts) if isinstance(self.texts, Path) else io.BytesIO(self.texts) as packed:
            for place, line in enumerate(raw_lines(gzip.GzipFile(fileobj=packed), where)):  # type: ignore[arg-type]
                left -= len(line)
                if left < 0:
                    raise DataError(f"texts are longer than {MOST_TEXT >> 30} GiB", where=where)
                if wanted in line:
                    found.append(place)
        return found


def stamp_of(path: Path) -> list[int]:
    """The size of a file and when it was changed. Raises OSError."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def read_index(file: EpisodeFile) -> FileIndex | None:
    """The index of a file as it is now; None where there is none."""
    path = _path(file)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, DataError):
        first, _, rows = read_small(path).decode("utf-8").partition("\n")
        head = read_json(first)
        texts = path.with_suffix(TEXTS)
        if head["columns"] == list(COLUMNS) and head["stamp"] == stamp_of(file.path) and texts.is_file():
            members = [int(start) for start in head["members"]]
            return FileIndex(head["stamp"], Totals.from_json(head["totals"]), rows.strip(), members, texts)
    return None


def make_index(file: EpisodeFile, config: Mapping[str, Any]) -> FileIndex:
    """The index of a file, from its episodes; without rows where it can't be read. Raises OSError where it is gone."""
    stamp, totals, rows, texts = stamp_of(file.path), Totals(), [], []
    try:
        for record in file.records():
            stored = StoredEpisode(record["step"], record["kind"], episode_from_json(record))
            totals.add(stored.episode)
            rows.append(row(stored))
            texts.append(said(stored.episode))
    except (DataError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("left out of the report: %s: %s", file.path, error)
        totals, rows, texts = Totals(), [], []
    return _index(file, stamp, totals, rows, texts, config)


def write_index(
    file: EpisodeFile, totals: Totals, rows: Sequence[list[Any]], texts: Sequence[str], config: Mapping[str, Any]
) -> None:
    """Keep the rows and the texts of a file that was just written. Raises OSError."""
    keep_index(file, _index(file, stamp_of(file.path), totals, rows, texts, config))


def keep_index(file: EpisodeFile, index: FileIndex) -> None:
    """Write a file's index. Raises OSError."""
    path = _path(file)
    path.parent.mkdir(exist_ok=True)
    head = {"columns": COLUMNS, "stamp": index.stamp, "totals": index.totals.to_json(), "members": index.members}
    if isinstance(index.texts, bytes):
        write_atomic(path.with_suffix(TEXTS), index.texts, durable=False)
    write_atomic(path, f"{_json(head)}\n{index.rows}\n", durable=False)


def _index(
    file: EpisodeFile,
    stamp: list[int],
    totals: Totals,
    rows: Sequence[list[Any]],
    texts: Sequence[str],
    config: Mapping[str, Any],
) -> FileIndex:
    set_advantages(rows, config)
    members = _members(file.path) if rows and file.path.suffix == ".gz" else []
    known = members if len(members) == math.ceil(len(rows) / MEMBER_EPISODES) else []
    packed = gzip.compress("\n".join(texts).encode("utf-8", "replace"), 1, mtime=0)
    return FileIndex(stamp, totals, _json(rows), known, packed)


def _members(path: Path) -> list[int]:
    """Where the gzip members of a file start, by the header that all have in common."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header, at, found = data[:10], 0, []
        while at >= 0:
            found.append(at)
            at = data.find(header, at + 1)
    return found


def read_member(file: EpisodeFile, number: int, members: Sequence[int]) -> list[bytes]:
    """The lines of a file's member, or of as many episodes in a file without. Raises OSError, EOFError, zlib.error,
    DataError."""
    first = 0 if members else number * MEMBER_EPISODES
    with open_regular(file.path) as packed:
        if members:
            packed.seek(members[number])
        lines: Any = gzip.GzipFile(fileobj=packed) if file.path.suffix == ".gz" else packed
        return list(islice(raw_lines(lines, str(file.path)), first, first + MEMBER_EPISODES))


def _json(value: Any) -> str:
    return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def name_of(file: EpisodeFile) -> str:
    """What the page calls a file, such as `000012-train`."""
    return file.path.name.partition(".")[0]


def _path(file: EpisodeFile) -> Path:
    return file.path.parent / "index" / f"{name_of(file)}.json"
