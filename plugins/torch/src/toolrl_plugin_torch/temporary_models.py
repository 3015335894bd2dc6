"""Temporary folders with whole models, for engines that read weights from a disk.

A folder is deleted when it isn't needed any more, and at the latest when its process ends. A killed process leaves its
folders behind, and models are large. So a folder's name holds its host and process, and the next process of the run
deletes the folders of dead ones. Folders of other hosts stay: their processes can't be checked here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"scratch-(\w+)-(\d+)-.+")


def temporary_folder(what: str, directory: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A new folder with `what` in its name, in `directory` or else in the system's folder for temporary files."""
    return tempfile.TemporaryDirectory(prefix=f"scratch-{_node()}-{os.getpid()}-{what}-", dir=directory)


def delete_abandoned(directory: Path) -> None:
    """Delete the folders of dead processes of this host. Call it before this process makes its own."""
    for path in directory.glob("scratch-*"):
        match = _NAME.fullmatch(path.name)
        if match and match[1] == _node() and not _is_alive(int(match[2])):
            shutil.rmtree(path, ignore_errors=True)


def _node() -> str:
    return re.sub(r"\W", "_", platform.node()) or "host"


def _is_alive(process: int) -> bool:
    """Whether another process has this number. This process's own number was a dead one's: containers reuse numbers."""
    if os.name != "posix":  # Elsewhere asking may end it.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()
