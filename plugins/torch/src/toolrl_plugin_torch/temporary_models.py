"""Temporary folders with whole models, for engines that read weights from a disk.

A folder is deleted when it isn't needed any more, and at the latest when its process ends. A killed process leaves its
folders behind, and models are large: the next process of the run, which holds the run folder's lock, deletes them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def temporary_folder(what: str, directory: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A new folder with `what` in its name, in `directory` or else in the system's folder for temporary files."""
    return tempfile.TemporaryDirectory(prefix=f"scratch-{what}-", dir=directory)


def delete_abandoned(directory: Path) -> None:
    """Delete what killed processes left. Call it before any process of the run makes its own."""
    for path in directory.glob("scratch-*"):
        shutil.rmtree(path, ignore_errors=True)
