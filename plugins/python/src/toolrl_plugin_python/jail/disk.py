"""What a job's files take where no file system of its own bounds them: those in its scratch folder, however deep and
whatever their modes, and those that have no name any more and that a process holds open or mapped. Removing them."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolrl_plugin_python.jail.processes import Process, folder_of

_LEAST = 4096
"""Bytes that a file costs, an empty one too."""
_LONGEST = 2000
"""Characters of a path below a folder that is held open: the kernel takes 4095."""
_DELETED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +(/.*) \(deleted\)$", re.MULTILINE)


class _Folder:
    """An open folder, closed with the last thing that refers to it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        os.close(self.handle)


class DiskUsage:
    """One look at the files of a job."""

    def __init__(self, enough: int) -> None:
        self.total = 0
        """Bytes; counting stops where they are `enough`."""
        self.sure = True
        """False where something moved or went away meanwhile, and with it perhaps more."""
        self._enough = enough
        self._seen: set[int] = set()

    def _add(self, info: os.stat_result) -> None:
        if info.st_nlink < 2 or stat.S_ISDIR(info.st_mode) or info.st_ino not in self._seen:
            self._seen.add(info.st_ino)
            self.total += max(info.st_blocks * 512, _LEAST)

    def add_tree(self, top: str) -> None:
        """All below a folder."""
        waiting: list[tuple[_Folder | None, str]] = [(None, top)]
        while waiting and self.total < self._enough:
            above, path = waiting.pop()
            try:
                folder, names = self._read(above, path)
            except OSError:
                self.sure = False
                continue
            if above is None or len(path) > _LONGEST:
                above, path = folder, ""
            waiting += [(above, os.path.join(path, name)) for name in names]  # noqa: PTH118

    def _read(self, above: _Folder | None, path: str) -> tuple[_Folder, list[str]]:
        """Count what is in a folder; the folder, and the names of those in it."""
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above.handle if above else None)
        try:
            itself = f"/proc/self/fd/{place}"
            try:
                return self._list(itself)
            except PermissionError:
                os.chmod(itself, os.fstat(place).st_mode | stat.S_IRWXU)  # noqa: PTH101
                return self._list(itself)
        finally:
            os.close(place)

    def _list(self, path: str) -> tuple[_Folder, list[str]]:
        folder = _Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        infos: list[os.stat_result] = []
        names = []
        with os.scandir(folder.handle) as entries:
            for entry in entries:
                try:
                    infos.append(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    self.sure = False
                    continue
                if stat.S_ISDIR(infos[-1].st_mode):
                    names.append(entry.name)
                if len(infos) * _LEAST >= self._enough:
                    break
        for info in infos:
            self._add(info)
        return folder, names

    def add_nameless(self, processes: Iterable[Process], scratch: str, largest: int) -> None:
        """Files of the scratch folder without a name. The size of one that is only mapped can't be known: it counts as
        `largest`."""
        opened: set[int] = set()
        mapped: set[int] = set()
        owner = Path(scratch).stat().st_uid
        for one in processes:
            folder = folder_of(one)
            with suppress(OSError):
                for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208
                    with suppress(OSError):
                        info = Path(folder, "fd", name).stat()
                        nameless = info.st_nlink == 0 and stat.S_ISREG(info.st_mode) and info.st_uid == owner
                        if nameless and info.st_ino not in opened:
                            opened.add(info.st_ino)
                            self._add(info)
                with open(f"{folder}/maps", "rb") as file:  # noqa: PTH123
                    text = file.read()
                if b" (deleted)\n" in text:
                    prefix = os.fsencode(scratch) + b"/"
                    mapped |= {int(it[1]) for it in _DELETED.finditer(text) if it[2].startswith(prefix)}
        self.total += len(mapped - opened) * largest


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
