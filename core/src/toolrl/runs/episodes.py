"""The episodes folder: one compressed file of JSON lines for each step.

While a step runs, its episodes are appended to `open.jsonl`, each line flushed as it is written, so a kill loses at
most a part of the last one. When the step's report comes, the file is renamed to `<step>-<kind>.jsonl` and then
compressed to `<step>-<kind>.jsonl.gz`. Each of these is one rename, so a kill in between leaves either form, never half
of one; where both are there, the compressed one is whole. Episodes of a step that never ended stay in `open.jsonl` and
are read last.

A step's file holds the episodes that ended between the report before it and its own.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from toolrl.errors import DataError
from toolrl.runs.files import json_line, read_lines, sync_directory, write_atomic
from toolrl.runs.records import StoredEpisode, episode_from_json, episode_to_json
from toolrl.types import Episode

_FILE = re.compile(r"(\d+)-([a-z]+)\.jsonl(\.gz)?\Z")
_ROUND = re.compile(r"(train|eval|rollout|sft)-(\d+)(?:/|\Z)")
_OPEN = "open.jsonl"
MEMBER_EPISODES = 32
"""Lines of a compressed file that are one gzip member: a reader that knows where it starts needs no other."""
_COMPRESSION = 3
"""Of zlib: three quarters of the best level's saving for an eighth of its time."""


@dataclass(frozen=True)
class EpisodeFile:
    """The file of one step's episodes."""

    path: Path
    step: int | None
    """None for the step that didn't end."""
    kind: str | None

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines as JSON objects, with `step` and `kind` filled in."""
        for record in self._lines():
            if not isinstance(record, dict):
                raise DataError("a line isn't an object", where=str(self.path))
            if self.step is not None:
                yield {**record, "step": self.step, "kind": self.kind}
                continue
            # A group's name begins with its round where the runner gave it.
            match = _ROUND.match(str(record.get("group", "")))
            yield {**record, "step": int(match[2]) if match else None, "kind": match[1] if match else None}

    def _lines(self) -> Iterator[Any]:
        try:
            with gzip.open(self.path, "rb") if self.path.suffix == ".gz" else self.path.open("rb") as file:
                yield from read_lines(file, str(self.path))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"can't be read: {type(error).__name__}: {error}", where=str(self.path)) from error

    def episodes(self) -> Iterator[StoredEpisode]:
        """The lines as episodes."""
        for record in self.records():
            try:
                yield StoredEpisode(record["step"], record["kind"], episode_from_json(record))
            except ValueError as error:
                raise DataError(str(error), where=str(self.path)) from error


class EpisodeStore:
    """Writes and reads the folder. One object writes a folder at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: IO[bytes] | None = None
        self._count = 0

    def add(self, episode: Episode) -> None:
        """Append an episode to the step that runs now."""
        if self._file is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            # "w": what an earlier process left open belongs to a step that is rolled out anew.
            self._file = (self.directory / _OPEN).open("wb")
            self._count = 0
        self._file.write(json_line(episode_to_json(episode)))
        self._file.flush()
        self._count += 1

    def close_step(self, step: int, kind: str) -> int:
        """End the running step's file under the step's name; how many episodes it holds.

        A file of the same step and kind is replaced; without episodes, nothing is written.
        """
        if self._file is None:
            return 0
        plain = self.directory / f"{step:06d}-{kind}.jsonl"
        packed = plain.with_name(plain.name + ".gz")
        try:
            self.close()
        finally:  # What a full disk left of it is kept under the step's name, or the next step would write over it.
            packed.unlink(missing_ok=True)
            (self.directory / _OPEN).replace(plain)
        prefix = json_line({"step": step, "kind": kind})[:-2] + b","
        lines = [prefix + line[1:] for line in plain.read_bytes().splitlines(keepends=True)]
        members = (b"".join(lines[at : at + MEMBER_EPISODES]) for at in range(0, len(lines), MEMBER_EPISODES))
        write_atomic(packed, b"".join(gzip.compress(member, _COMPRESSION, mtime=0) for member in members))
        plain.unlink()
        return self._count

    def close(self) -> None:
        """Close the running step's file, which stays as it is."""
        file, self._file = self._file, None  # Also where it can't be closed whole: it takes nothing more then.
        if file is not None:
            file.close()

    def rewind(self, step: int) -> None:
        """Delete the files of later steps, and of the step that didn't end."""
        self.close()
        (self.directory / _OPEN).unlink(missing_ok=True)
        for file in self.files():
            if file.step is not None and file.step > step:
                # the uncompressed twin first: it must not come back alone
                file.path.with_name(f"{file.step:06d}-{file.kind}.jsonl").unlink(missing_ok=True)
                file.path.unlink(missing_ok=True)
        if self.directory.exists():
            sync_directory(self.directory)

    def files(self) -> list[EpisodeFile]:
        """The files by step, the open one last."""
        if not self.directory.is_dir():
            return []
        found: dict[tuple[int, str], EpisodeFile] = {}
        for path in sorted(self.directory.iterdir()):  # "….jsonl.gz" sorts after "….jsonl" and wins
            match = _FILE.match(path.name)
            if match:
                key = (int(match[1]), match[2])
                found[key] = EpisodeFile(path, *key)
        last = self.directory / _OPEN
        return [found[key] for key in sorted(found)] + ([EpisodeFile(last, None, None)] if last.exists() else [])

    def episodes(self, *, kind: str | None = None, steps: Collection[int] | None = None) -> Iterator[StoredEpisode]:
        """Stored episodes by step; of one kind and of some steps where these are given."""
        for file in self.files():
            if file.step is not None and not _wanted(file.step, file.kind, kind, steps):
                continue
            for stored in file.episodes():
                if _wanted(stored.step, stored.kind, kind, steps):
                    yield stored


def _wanted(step: int | None, its_kind: str | None, kind: str | None, steps: Collection[int] | None) -> bool:
    return (kind is None or its_kind == kind) and (steps is None or step in steps)
