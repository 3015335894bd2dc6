"""Rows that are Python objects, read as those of files are: values are plain, missing cells are absent.

| given | read |
|---|---|
| a list, or another sequence, of dicts | by index |
| a `datasets.Dataset`, a pyarrow table, a polars frame | as a parquet file: nulls are absent |
| a pandas frame | by index; NaN, NaT and NA are absent |

A `datasets.Dataset` whose rows a function of the user's transforms is read by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from toolrl.builtin.rows import FileRows, Row, table_row
from toolrl.errors import ConfigError, DataError
from toolrl.loop.data_state import each_row
from toolrl.tools.values import array_items, short_floats

HINT = "Give a list of dicts such as {'prompt': …, 'answer': …}, a datasets.Dataset, a data frame, or a list of Task."


_BATCH = 100
"""Rows that a digest takes at once: with pictures they may be large."""
_NO_VALUES = ("NaTType", "NAType")
"""Types of pandas' missing values."""


_SHORT = ("float32", "float[pyarrow]")
"""Types of pandas' columns whose numbers have 32 bits; its records hold them with 64."""


def has_rows(value: Any) -> bool:
    """Whether a value has a length and items by place."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)


def given_rows(value: Any, where: str) -> FileRows | Sequence[Any]:
    """The rows of a value, or the value itself if it is a sequence of something else than rows. `where` is its place in
    the config. Raises ConfigError for what has no rows."""
    library, name = type(value).__module__.partition(".")[0], type(value).__name__
    path = Path(where.rpartition(".")[2])
    if library == "datasets" and name == "Dataset":
        custom = value.format["type"] == "custom"
        return GivenRows(value, path) if custom else ArrowRows(value, path)
    if library in ("polars", "pyarrow") and (hasattr(value, "to_arrow") or hasattr(value, "to_pylist")):
        return _table(value, path, where)
    if library == "pandas" and name == "DataFrame":
        return FrameRows(value, path, where)
    if library in ("pandas", "numpy") and hasattr(value, "tolist"):
        value = value.tolist()
    if not has_rows(value):
        raise ConfigError(f"{where}: a {name} has no length and no rows by index", hint=_hint(library, name))
    if len(value) == 0 or isinstance(value[0], Mapping):
        return GivenRows(value, path)
    return value  # type: ignore[no-any-return]


def _hint(library: str, name: str) -> str:
    if library == "datasets":
        return "Take rows of the stream: datasets.Dataset.from_list(list(stream.take(1000)))."
    if library == "polars" and name == "LazyFrame":
        return "Give frame.collect()."
    return HINT


def is_dict_of_splits(value: Any) -> bool:
    """Whether it is a `datasets.DatasetDict`, or its streaming kind."""
    return isinstance(value, dict) and type(value).__module__.partition(".")[0] == "datasets"


def check_not_splits(value: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a dict whose values are data sets or columns, such as a `datasets.DatasetDict`."""
    if not value or not all(map(has_rows, value.values())):
        return
    names = ", ".join(map(str, value))
    if any(isinstance(item, list | tuple) for item in value.values()):
        hint = "Give its rows, a list of dicts, or name a component by `use`."
        raise ConfigError(f"{where}: a dict of the lists {names}; expected the rows of one data set", hint=hint)
    hint = f"Give one of them, such as data[{next(iter(value))!r}]."
    raise ConfigError(f"{where}: a dict of the data sets {names}; expected the rows of one", hint=hint)


class GivenRows(FileRows):
    """Rows by index."""

    in_memory: ClassVar[bool] = True

    def __init__(self, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
        """`path` names the rows."""
        super().__init__(path)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        row = self._rows[index]
        if not isinstance(row, Mapping):
            raise DataError(f"a row is a {type(row).__name__}, expected a dict", where=self.where(index))
        return _row(row)


class ArrowRows(FileRows):
    """Rows of a `datasets.Dataset`, as Arrow has them: images as bytes or path, null fields left out."""

    in_memory: ClassVar[bool] = True

    def __init__(self, dataset: Any, path: Path) -> None:
        """`path` names the rows; relative paths of images start at its parent."""
        super().__init__(path)
        self._dataset = dataset.with_format("arrow", columns=dataset.format["columns"])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        return table_row(self._dataset[index : index + 1], 0, self.where(index))

    def rows_at(self, indices: Sequence[int]) -> Iterable[Any]:
        """The rows at these indices. Taking many at once is much faster."""
        for start in range(0, len(indices), _BATCH):
            table = self._dataset[list(indices[start : start + _BATCH])]
            yield from each_row(partial(table_row, table, where=""), range(len(table)))


class TableRows(FileRows):
    """Rows of a pyarrow table."""

    in_memory: ClassVar[bool] = True

    def __init__(self, table: Any, path: Path) -> None:
        super().__init__(path)
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Row:
        return table_row(self._table, index, self.where(index))


def _table(value: Any, path: Path, where: str) -> TableRows:
    try:
        import pyarrow

        table = value.to_arrow() if hasattr(value, "to_arrow") else value
    except ImportError as error:
        raise ConfigError(f"{where}: reading a polars frame needs pyarrow", hint="pip install pyarrow") from error
    if isinstance(table, pyarrow.RecordBatch):
        table = pyarrow.Table.from_batches([table])
    elif not isinstance(table, pyarrow.Table):
        if not pyarrow.types.is_struct(table.type):
            raise ConfigError(f"{where}: a column of {table.type}, expected rows", hint=HINT)
        table = pyarrow.Table.from_struct_array(table)
    return TableRows(table, path)


class FrameRows(FileRows):
    """Rows of a pandas frame. Its objects have all keys in all rows if they come from Arrow, so nulls are left out of
    them as out of a parquet file's."""

    in_memory: ClassVar[bool] = True

    def __init__(self, frame: Any, path: Path, where: str) -> None:
        super().__init__(path)
        self._frame = frame
        names = [str(name) for name in frame.columns]
        if len(set(names)) < len(names):
            twice = ", ".join(dict.fromkeys(name for name in names if names.count(name) > 1))
            raise ConfigError(f"{where}: duplicate column {twice}", hint="Rename one, or leave it out.")
        self._short = {name for name, kind in frame.dtypes.items() if str(kind).lower() in _SHORT}

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, index: int) -> Row:
        # A slice keeps the columns' types; iloc[index] would give all of them one.
        (row,) = self._frame.iloc[index : index + 1].to_dict("records")
        return self._plain(row)

    def rows_at(self, indices: Sequence[int]) -> Iterable[Row]:
        """The rows at these indices. Taking many at once is much faster."""
        return map(self._plain, self._frame.iloc[list(indices)].to_dict("records"))

    def _plain(self, row: Mapping[Any, Any]) -> Row:
        cells = {name: short_floats(cell) if name in self._short else cell for name, cell in row.items()}
        return _row(cells, nulls=False)


def _row(row: Mapping[Any, Any], *, nulls: bool = True) -> Row:
    nulls = nulls and not any(map(_is_array, row.values()))  # rows with arrays come from Arrow's columns
    cells = ((str(name), plain(value, nulls=nulls)) for name, value in row.items())
    return {name: value for name, value in cells if not _is_missing(value)}


def plain(value: Any, *, nulls: bool = True) -> Any:
    """A value as a JSON file would have it: arrays and tuples as lists, scalars of numpy and torch as Python's. Without
    `nulls`, null fields of objects are left out."""
    if isinstance(value, Mapping):
        items = {str(key): plain(item, nulls=nulls) for key, item in value.items()}
        return items if nulls else {key: item for key, item in items.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item, nulls=nulls) for item in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist") and not isinstance(value, type):
        return plain(array_items(value), nulls=nulls)
    return None if type(value).__name__ in _NO_VALUES else value


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _is_missing(value: Any) -> bool:
    """Whether a cell is None, NaN, or pandas' NaT or NA."""
    return value is None or type(value).__name__ in _NO_VALUES or (isinstance(value, float) and value != value)
