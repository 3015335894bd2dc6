"""Rows of data files by index, without holding a file in memory.

A JSON Lines file is scanned once for where its lines start, 8 bytes a row, and a row is parsed when it is asked for. A
parquet file is read by row groups, of which the last used ones are kept under a byte budget. It has the same keys in
all rows and null where a row lacks one, so nulls are left out of its objects. Columns and fields of Arrow's type
`arrow.json`, in which `datasets` stores empty objects and mixed types, become the values that their text holds. A
`.json` file holds one list and is read whole. A file that is changed while a run reads it stops the run.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from glob import glob
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

from toolrl import bounded_json
from toolrl.chat.row_remarks import Remarks
from toolrl.errors import SAVE_AS_UTF8, DataError
from toolrl.loop.data_state import DIGEST_BYTES, WatchedFile, each_row, rows_digest
from toolrl.tools.values import short_floats

_log = logging.getLogger(__name__)
Row = dict[str, Any]
T = TypeVar("T")
TABLE_BYTES = 512 * 2**20
"""Of parquet row groups kept in memory, for each file; the last used one is kept in any case."""


class FileRows:
    """The rows of one file."""

    in_memory: ClassVar[bool] = False
    """True for rows without a file, whose path is only a name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._watched: WatchedFile | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Row:
        """Raises DataError for a row that isn't an object."""
        raise NotImplementedError

    def where(self, index: int) -> str:
        """The file and the row's index, for messages."""
        return f"{self.path}[{index}]"

    def watch(self, budget: int) -> None:
        """Remember the file as it is. Its digest may read `budget` bytes. Raises DataError."""
        if not self.in_memory:
            self._watched = WatchedFile(self.path, budget)

    def check_unchanged(self) -> None:
        """Raises DataError if the file was changed since `watch`."""
        if self._watched is not None:
            self._watched.check()

    def digest(self) -> str:
        """A digest of the file as `watch` found it, or of the rows in memory."""
        return rows_digest(len(self), self.rows_at) if self._watched is None else self._watched.digest

    def rows_at(self, indices: Sequence[int]) -> Iterable[Any]:
        """The rows at these indices, for a digest."""
        return each_row(self.__getitem__, indices)

    def _object(self, value: Any, index: int) -> Row:
        if not isinstance(value, dict):
            raise DataError(f"a row is a JSON {_kind(value)}, expected an object", where=self.where(index))
        return value


def find_files(patterns: str | Sequence[str], where: str = "") -> list[Path]:
    """The files of paths and globs, in the order given, those of a glob sorted. Raises DataError for one that finds
    nothing."""
    files: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(pattern).expanduser()
        # glob.glob, because Path.glob takes no absolute pattern. A file whose name holds a bracket is taken as it is.
        found = [path] if path.is_file() else sorted(Path(name) for name in glob(str(path), recursive=True))  # noqa: PTH207
        found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(
                f"no file matches {pattern!r} (in {Path.cwd()})",
                where=where or None,
                hint="Check the path; a relative one starts at the folder that the command runs in.",
            )
        files.extend(found)
    parquet = next((file for file in files if file.suffix == ".parquet"), None)
    if parquet is not None and importlib.util.find_spec("pyarrow") is None:
        raise _no_pyarrow(parquet)
    table = next((file for file in files if file.suffix in (".csv", ".tsv")), None)
    if table is not None:
        hint = 'Convert it to JSON Lines: one JSON object a line, such as {"prompt": …, "answer": …}.'
        if table.suffix == ".csv":
            hint = (
                f"The data set `huggingface` reads it: `{{use: huggingface, options: {{path: {table}}}}}`. Or: {hint}"
            )
        raise DataError(f"{table.suffix} files aren't read", where=str(table), hint=hint)
    return files


def _no_pyarrow(path: Path) -> DataError:
    return DataError("reading parquet files needs pyarrow", where=str(path), hint="pip install 'toolrl[parquet]'")


def open_rows(path: Path, otherwise: type[FileRows] | None = None) -> FileRows:
    """The rows of a file, by its ending; `otherwise` reads one whose ending isn't known. Raises DataError where there
    is none."""
    kind = _KINDS.get(path.suffix, otherwise)
    if kind is None:
        raise DataError(f"{path}: unknown ending {path.suffix!r}", hint="Use a .jsonl, .json or .parquet file.")
    return kind(path)


class JsonLines(FileRows):
    """A JSON Lines file. Blank lines are passed over."""

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Row:
        with _open(self.path) as file:
            file.seek(self._starts[index])
            line = file.readline()
        try:
            _check_size(line)
            hint = "Each line has to be one JSON object; a file that holds one list should end in .json."
            return self._object(_from_json(line, hint), index)
        except DataError as error:
            error.where = self.where(index)
            raise

    def where(self, index: int) -> str:
        """`file:line`, the first line being 1."""
        with _open(self.path) as file:
            line = file.read(self._starts[index]).count(b"\n")
        return f"{self.path}:{line + 1}"

    @cached_property
    def _starts(self) -> array[int]:
        """The offsets of the rows, which are lines that aren't blank."""
        starts, position = array("Q"), 0
        with _open(self.path) as file:
            for line in file:
                if not line.isspace():
                    starts.append(position)
                position += len(line)
        return starts


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror}", where=str(path)) from error


def _check_size(line: bytes) -> None:
    """Raises DataError for a row that takes seconds to read: the episodes of a run wait meanwhile."""
    try:
        bounded_json.check_size(line)
    except ValueError as error:
        raise DataError(
            f"row is too large: {error}", hint="Keep large values in files, and their paths in rows."
        ) from None


def _from_json(text: bytes, hint: str) -> Any:
    """Raises DataError, without the text's place."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        what = f"not UTF-8: byte 0x{byte:02x} at column {error.start + 1}"
        raise DataError(what, hint=SAVE_AS_UTF8) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", hint=hint) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which plain JSON takes the last of two equal keys. Raises DataError."""
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        raise _twice("key", names)
    return read


def _twice(what: str, names: Sequence[str]) -> DataError:
    found = dict.fromkeys(name for name in names if names.count(name) > 1)
    return DataError(f"duplicate {what} {', '.join(map(repr, found))}", hint="Rename one, or leave it out.")


class JsonRows(FileRows):
    """A file that holds one JSON list of objects."""

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Row:
        return self._object(self._values[index], index)

    @cached_property
    def _values(self) -> list[Any]:
        with _open(self.path) as file:
            text = file.read()
        try:
            value = _from_json(text, "A file with one object a line should end in .jsonl.")
            if not isinstance(value, list):
                raise DataError(f"holds a JSON {_kind(value)}, expected a list of objects")
        except DataError as error:
            error.where = str(self.path)
            raise
        return value


class ParquetRows(FileRows):
    """A parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tables: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Row:
        group = bisect_right(self._ends, index)
        first = self._ends[group - 1] if group else 0
        return table_row(self._table(group), index - first, self.where(index))

    def _table(self, group: int) -> Any:
        table = self._tables.pop(group, None)
        if table is None:
            table = self._file.read_row_group(group)
        self._tables[group] = table
        while len(self._tables) > 1 and sum(kept.nbytes for kept in self._tables.values()) > TABLE_BYTES:
            self._tables.popitem(last=False)
        return table

    @cached_property
    def _file(self) -> Any:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            raise _no_pyarrow(self.path) from None
        try:
            return parquet.ParquetFile(self.path)
        except (OSError, ArrowException) as error:
            raise DataError(f"can't be read as parquet: {error}", where=str(self.path)) from error

    @cached_property
    def _ends(self) -> list[int]:
        metadata = self._file.metadata
        return list(accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_watched": self._watched, "_tables": OrderedDict()}


_KINDS: dict[str, type[FileRows]] = {
    ".parquet": ParquetRows, ".json": JsonRows, ".jsonl": JsonLines, ".ndjson": JsonLines
}  # fmt: skip


class JoinedRows:
    """The rows of several files, one after the other, the first `limit` of them."""

    def __init__(self, files: Sequence[FileRows], limit: int | None = None) -> None:
        self._files = files
        self._limit = limit
        self._remarks = Remarks()

    def __len__(self) -> int:
        total = self._ends[-1] if self._ends else 0
        return total if self._limit is None else min(total, self._limit)

    def __getitem__(self, index: int) -> Row:
        file, row = self._find(index)
        try:
            # NaN is the empty cell of a table that pandas wrote.
            return {name: value for name, value in file[row].items() if value == value or not isinstance(value, float)}
        finally:  # after reading, also if that failed: a file that was changed explains it
            file.check_unchanged()

    def read(self, index: int, make: Callable[[Row], T]) -> T:
        """What `make` makes of a row. Raises its DataError, with the row's place, which remarks get too."""
        row = self[index]
        try:
            with self._remarks.on_row(lambda: self.where(index)):
                return make(row)
        except DataError as error:
            raise DataError(error.message, where=self.where(index), hint=error.hint) from None

    def where(self, index: int) -> str:
        """The file and the place in it."""
        file, row = self._find(index)
        return file.where(row)

    def name(self, index: int) -> str:
        """A row's name where it has none of its own: the file's stem, and the index over all files."""
        return f"{self._find(index)[0].path.stem}-{index}"

    def folder(self, index: int) -> Path:
        """The folder of the row's file."""
        return self._find(index)[0].path.parent

    def digest(self) -> str:
        """A digest of all rows, as they were when the first one was asked for."""
        found = blake2b(digest_size=16)
        if self._ends:
            found.update(" ".join(file.digest() for file in self._files).encode())
        return found.hexdigest()

    @cached_property
    def _ends(self) -> list[int]:
        for file in self._files:
            file.watch(DIGEST_BYTES // len(self._files))
        ends = list(accumulate(len(file) for file in self._files))
        starts = [0, *ends]
        for file, start, end in zip(self._files, starts, ends, strict=False):
            if start == end:
                _log.warning("%s holds no rows", file.path)
            elif self._limit is not None and start >= self._limit:
                _log.warning("limit %d: no row of %s is taken", self._limit, file.path)
        return ends

    def _find(self, index: int) -> tuple[FileRows, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a data set of {len(self)}")
        file = bisect_right(self._ends, index)
        return self._files[file], index - (self._ends[file - 1] if file else 0)


class RowTasks:
    """Base of data sets that make a task of each row: how many there are, their places, and a digest."""

    _rows: JoinedRows

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, index: int) -> str:
        """The row's file and place in it."""
        return self._rows.where(index)

    def digest(self) -> str:
        """A digest of the rows."""
        return self._rows.digest()


def table_row(table: Any, index: int, where: str) -> Row:
    """A row of an Arrow table, without its nulls. Raises DataError for broken JSON and duplicate columns, which names
    the place."""
    try:
        _check_names(table.schema)
        (row,) = table.slice(index, 1).to_pylist()
        return {name: _decoded(value, table.field(name)) for name, value in row.items() if value is not None}
    except DataError as error:
        raise DataError(error.message, where=where, hint=error.hint) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"a value of a JSON column isn't JSON: {error}", where=where) from None


def _check_names(fields: Any) -> None:
    """Raises DataError for a schema, or a struct inside of it, in which a name stands twice."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise _twice("column", names)
    for field in fields:
        kind = getattr(field.type, "storage_type", field.type)
        while hasattr(kind, "value_field"):
            kind = kind.value_field.type
        if hasattr(kind, "get_field_index"):  # a struct
            _check_names([kind.field(index) for index in range(kind.num_fields)])


def _decoded(value: Any, field: Any) -> Any:
    """A value of an Arrow field: JSON read, and nulls left out of structs. Raises ValueError for broken JSON."""
    metadata = field.metadata or {}  # A pyarrow before 19 knows the type by its name alone.
    name = getattr(field.type, "extension_name", None) or metadata.get(b"ARROW:extension:name", b"").decode()
    if name == "arrow.json" and isinstance(value, str):
        return bounded_json.loads(value)
    kind = getattr(field.type, "storage_type", field.type)
    if isinstance(value, float):
        return short_floats(value) if str(kind) == "float" else value
    if isinstance(value, dict):
        return {key: _decoded(item, kind.field(key)) for key, item in value.items() if item is not None}
    if isinstance(value, list) and hasattr(kind, "value_field"):
        return [_decoded(item, kind.value_field) for item in value]
    return value


def _kind(value: Any) -> str:
    return {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
