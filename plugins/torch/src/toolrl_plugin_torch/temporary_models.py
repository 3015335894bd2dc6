"""Folders that a run needs for a while: whole models, for engines that read weights from a disk.

Each goes when it isn't needed any more, and at the latest when its process ends. A process that is killed leaves its
own behind, though, and a model is large. So a folder's name says whose it is, and who goes on with the run deletes
those of the dead. Whether a process of another host is dead nobody can say here: its folders stay.
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
    """A new folder in `directory`, with `what` in its name; in the system's place for such things without one."""
    return tempfile.TemporaryDirectory(prefix=f"scratch-{_node()}-{os.getpid()}-{what}-", dir=directory)


def delete_abandoned(directory: Path) -> None:
    """Delete the folders of processes of this host that are no more. Call it before this process makes its own."""
    for path in directory.glob("scratch-*"):
        match = _NAME.fullmatch(path.name)
        if match and match[1] == _node() and not _is_alive(int(match[2])):
            shutil.rmtree(path, ignore_errors=True)


def _node() -> str:
    return re.sub(r"\W", "_", platform.node()) or "host"


def _is_alive(process: int) -> bool:
    """Whether another process has this number. One's own was a dead one's: in containers many have the same."""
    if os.name != "posix":  # Elsewhere asking may end it.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()
