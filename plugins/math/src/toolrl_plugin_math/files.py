"""The files of GSM8K's splits."""

from __future__ import annotations

from pathlib import Path

from toolrl.builtin.rows import find_files
from toolrl.errors import DataError

ENDINGS = ("jsonl", "json", "parquet")


def find_split(path: str, split: str, where: str = "") -> list[Path]:
    """The files that hold the split: those of the folder `path`, or `path` itself. Raises DataError where there
    are none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return find_files(path, where)
    for ending in ENDINGS:
        found = sorted([*folder.glob(f"{split}.{ending}"), *folder.glob(f"{split}-*.{ending}")])
        if found:
            return found
    raise DataError(
        f"{folder} has no file {split}.jsonl, .json or .parquet",
        where=where or None,
        hint="Set `split`, or give `path` a file.",
    )
