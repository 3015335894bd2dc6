"""The files of a split, and their rows.

| layout | a split is |
|---|---|
| a hub's copy | `data/train-00000-of-00001.parquet` |
| `datasets.save_to_disk` | `train/data-00000-of-00001.arrow` |
| `toolrl geo3k data` | `train.parquet` |

FileRows hold `problem`, `answer` and `images`, or already `prompt` and `reward_model` as in verl's layout.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from toolrl.builtin.datasets import read_image
from toolrl.builtin.rows import FileRows, JoinedRows, Row, open_rows, table_row
from toolrl.errors import DataError
from toolrl.types import Media
from toolrl_plugin_math.files import find_split

ENDINGS = ("parquet", "arrow", "jsonl", "json")


def open_split(path: str, split: str, limit: int | None = None, where: str = "") -> JoinedRows:
    """The rows of a split."""
    return JoinedRows([_open(file) for file in find_split(path, split, where, ENDINGS)], limit)


def _open(path: Path) -> FileRows:
    return ArrowRows(path) if path.suffix == ".arrow" else open_rows(path)


class ArrowRows(FileRows):
    """The rows of an Arrow stream, as the library `datasets` saves it. The file is mapped, not read."""

    @cached_property
    def _table(self) -> Any:
        import pyarrow

        try:
            with pyarrow.memory_map(str(self.path)) as source:
                return pyarrow.ipc.open_stream(source).read_all()
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.path} can't be read as an Arrow stream: {error}") from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Row:
        return table_row(self._table, index, self.where(index))


def images_of(row: Row, folder: Path) -> list[Media]:
    """The images of a row. Raises DataError, without the row's place."""
    value = row.get("images") or []
    if not isinstance(value, list):
        raise DataError(f"'images' is {value!r:.60}, expected a list")
    return [read_image(item, f"images[{index}]", folder) for index, item in enumerate(value)]
