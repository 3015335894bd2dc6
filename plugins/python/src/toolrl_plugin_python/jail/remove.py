"""Removing a folder that a hostile program filled: any depth, any modes, links that lead elsewhere."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def remove_tree(top: Path) -> None:
    """Remove a folder with all in it. Folders are moved up before they are emptied, so that depth costs nothing; links
    are removed and never followed. Nothing may write to it meanwhile."""
    waiting = [top]
    count, mark = 0, secrets.token_hex(8)
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):
            folder.chmod(0o700)
            names = os.listdir(folder)  # noqa: PTH208 - hostile names, and many of them
            for name in names:
                path = folder / name
                if not stat.S_ISDIR(path.lstat().st_mode):
                    path.unlink()
                    continue
                count += 1
                path.chmod(0o700)
                moved = path if folder == top else path.rename(top / f".{mark}-{count}")
                waiting.append(moved)
        if folder != top:
            with suppress(OSError):
                folder.rmdir()
    with suppress(OSError):
        top.rmdir()
