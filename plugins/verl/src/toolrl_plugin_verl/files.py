"""Data files by path: a file, a glob, or a folder of them. And a look whether files are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolrl.builtin.rows import find_files
from toolrl.errors import DataError

ENDINGS = (".parquet", ".jsonl", ".json")


def data_files(paths: str | Sequence[str], where: str = "") -> list[Path]:
    """These files, those of a folder in the order of their names. Raises DataError for a path that finds none."""
    given = [paths] if isinstance(paths, str) else paths
    return [file for path in given for file in _in_folder(path) or find_files(path, where)]


def check_file(option: str, path: str | None) -> None:
    """Raises DataError for a file that isn't there; None names none."""
    if path is not None and not Path(path).expanduser().is_file():
        raise DataError(f"{option}: there is no file {path!r} (in {Path.cwd()})")


def _in_folder(path: str) -> list[Path]:
    """The data files in a folder and below it; none where it is no folder, or has none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.rglob("*") if file.suffix in ENDINGS and file.is_file())
