"""The files of a data set's split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolrl.builtin.rows import find_files
from toolrl.errors import DataError

ENDINGS = ("parquet", "jsonl", "json")


def find_split(path: str, split: str, where: str = "", endings: Sequence[str] = ENDINGS) -> list[Path]:
    """The files that hold the split: `path` itself, or in that folder `train.parquet`, `train-*.parquet`,
    `data/train-*.parquet` or all of a folder `train`. Raises DataError where there are none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return find_files(path, where)
    names = [f"{place}{split}{rest}" for place in ("", "data/") for rest in ("", "-*")] + [f"{split}/*"]
    for name in names:
        for ending in endings:
            if found := sorted(folder.glob(f"{name}.{ending}")):
                return found
    raise DataError(
        f"{folder} has no file {split}.parquet, {split}-*.parquet or data/{split}-*.parquet, and no folder {split}; "
        f"endings may be {', '.join(endings)}",
        where=where or None,
        hint="Set `split`, or give `path` a file.",
    )
