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
from toolrl.runs.files import AppendedFile, json_line, open_regular, read_lines, sync_directory, write_atomic
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
            with open_regular(self.path) as file:
                lines: IO[bytes] = gzip.GzipFile(fileobj=file) if self.path.suffix == ".gz" else file  # type: ignore[assignment]
                yield from read_lines(lines, str(self.path))
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
        self._file: AppendedFile | None = None
        self._count = 0
        self._waiting: list[bytes] = []
        """Lines of the running step that the disk had no room for."""
        self._late: dict[tuple[int, str], list[bytes]] = {}
        """The same of steps that ended."""

    @property
    def unsaved(self) -> int:
        """The number of episodes that aren't on the disk yet."""
        return len(self._waiting) + sum(map(len, self._late.values()))

    def add(self, episode: Episode) -> None:
        """Append an episode to the step that runs now. If this raises OSError, the episode is kept and written with the
        next."""
        self._waiting.append(json_line(episode_to_json(episode)))
        self.write_waiting()

    def write_waiting(self) -> None:
        """Write the episodes that the disk had no room for, if there are any. Raises OSError."""
        for key in list(self._late):
            self._append_late(*key)
        if not self._waiting:
            return
        if self._file is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            # What an earlier process left open belongs to a step that is rolled out anew.
            self._file = AppendedFile(self.directory / _OPEN, anew=True)
            self._count = 0
        while self._waiting:
            self._file.append(self._waiting[0])
            self._count += 1
            del self._waiting[0]

    def close_step(self, step: int, kind: str) -> int:
        """End the running step's file under the step's name; how many episodes it holds.

        A file of the same step and kind is replaced; without episodes, nothing is written. If this raises OSError, what
        couldn't be written is kept and written later.
        """
        try:
            self.write_waiting()
        except OSError:
            if self._waiting:
                self._late[step, kind], self._waiting = self._waiting, []
            self._end_file(step, kind)
            raise
        return self._end_file(step, kind)

    def _end_file(self, step: int, kind: str) -> int:
        if self._file is None:
            return 0
        plain, packed = self._paths(step, kind)
        try:
            self.close()
        finally:  # What a full disk left of it is kept under the step's name, or the next step would write over it.
            packed.unlink(missing_ok=True)
            (self.directory / _OPEN).replace(plain)
        if (step, kind) not in self._late:
            self._pack(step, kind)
        return self._count

    def _paths(self, step: int, kind: str) -> tuple[Path, Path]:
        plain = self.directory / f"{step:06d}-{kind}.jsonl"
        return plain, plain.with_name(plain.name + ".gz")

    def _pack(self, step: int, kind: str) -> None:
        plain, packed = self._paths(step, kind)
        prefix = json_line({"step": step, "kind": kind})[:-2] + b","
        lines = [prefix + line[1:] for line in plain.read_bytes().splitlines(keepends=True)]
        members = (b"".join(lines[at : at + MEMBER_EPISODES]) for at in range(0, len(lines), MEMBER_EPISODES))
        write_atomic(packed, b"".join(gzip.compress(member, _COMPRESSION, mtime=0) for member in members))
        plain.unlink()

    def _append_late(self, step: int, kind: str) -> None:
        """Write what is left of a step that ended."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = AppendedFile(self._paths(step, kind)[0])
        lines = self._late[step, kind]
        try:
            while lines:
                file.append(lines[0])
                del lines[0]
        finally:
            file.close()
        del self._late[step, kind]
        self._pack(step, kind)

    def close(self) -> None:
        """Close the running step's file, which stays as it is."""
        file, self._file = self._file, None  # Also where it can't be closed whole: it takes nothing more then.
        if file is not None:
            file.close()

    def rewind(self, step: int) -> None:
        """Delete the files of later steps, and of the step that didn't end."""
        self.close()
        self._waiting.clear()
        self._late.clear()
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
