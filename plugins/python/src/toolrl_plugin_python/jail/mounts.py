"""A file system of a process's own: a fresh root that shows a few of the machine's paths, read-only, and a scratch
folder in memory with a fixed size.

Each path stands where it stands outside, so that an interpreter finds its library; symbolic links on the way to it are
made again. There is no /proc and no /sys.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from toolrl_plugin_python.jail import landlock, system
from toolrl_plugin_python.jail.settings import Settings
from toolrl_plugin_python.jail.system import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC

SCRATCH = "/scratch"
WRITABLE = {SCRATCH: "scratch", "/tmp": "tmp", "/dev/shm": "shm"}
"""Folders that may be written, and what each is called in the one file system that they share."""
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
ZERO = "/dev/zero"
"""May be read only: mapped for writing it gives shared memory without a file, as `seccomp` refuses it elsewhere."""
INODES_PER_MB = 512

_BASE, _OLD, _NEW = "/tmp", "/old", "/new"
_FILES = {
    "/etc/passwd": "user:x:{uid}:{gid}:user:/scratch:/bin/sh\n",
    "/etc/group": "user:x:{gid}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_MAX_LINKS = 40


def build_root(settings: Settings, scratch_mb: int, owner: tuple[int, int], shown: tuple[int, int]) -> None:
    """Change this process's root; it needs a mount namespace of its own. `owner` is the user and group that owns the
    scratch folder as this process counts them, `shown` as the program inside does. Raises OSError."""
    system.mount(None, "/", None, MS_REC | MS_PRIVATE)
    system.mount("tmpfs", _BASE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for folder in (_OLD, _NEW):
        Path(_BASE + folder).mkdir()
    system.pivot_root(_BASE, _BASE + _OLD)
    os.chdir("/")
    system.mount("tmpfs", _NEW, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    _scratch(scratch_mb, owner)
    # A device on a read-only mount can still be written; Landlock forbids it.
    for device in (*DEVICES, ZERO) if landlock.version() else DEVICES:
        _bind(device, needed=False, flags=MS_NOSUID | MS_NOEXEC)
    _show(settings)
    for link in _ROOT_LINKS:
        _copy_link(link)
    for path, text in _FILES.items():
        target = Path(_NEW + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError), target.open("x") as file:
            file.write(text.format(uid=shown[0], gid=shown[1]))
    system.restrict_mount(_NEW, MS_RDONLY, recursive=False)
    system.unmount(_OLD)
    os.chdir(_NEW)
    # The new root goes over the base, and the base away: nothing is left above it.
    system.pivot_root(".", ".")
    system.unmount(".")
    os.chdir("/")


def _scratch(size_mb: int, owner: tuple[int, int]) -> None:
    """One file system for all that may be written, so that its size is the limit of everything together."""
    Path("/writable").mkdir()
    limits = f"mode=755,size={size_mb}m,nr_inodes={1000 + INODES_PER_MB * size_mb}"
    system.mount("tmpfs", "/writable", "tmpfs", MS_NOSUID | MS_NODEV, limits)
    for target, name in WRITABLE.items():
        source = Path("/writable", name)
        source.mkdir(mode=0o700)
        os.chown(source, *owner)
        Path(_NEW + target).mkdir(parents=True, exist_ok=True)
        system.mount(str(source), _NEW + target, None, MS_BIND)


def _show(settings: Settings) -> None:
    """Bind what is readable, and put empty folders over what is hidden below it, from the top down."""
    wanted = {_resolve(path): False for path in settings.hidden} | {_resolve(path): True for path in settings.readable}
    done: dict[str, bool] = {}
    for real, is_shown in sorted(wanted.items(), key=lambda item: len(item[0])):
        above = max((path for path in done if real.startswith(path + "/")), key=len, default=None)
        if is_shown == (above is not None and done[above]):
            continue
        if is_shown:
            _bind(real, needed=True, flags=MS_RDONLY | MS_NOSUID | MS_NODEV)
        elif Path(_OLD + real).is_dir():
            system.mount("tmpfs", _NEW + real, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        done[real] = is_shown
    for real, is_shown in done.items():
        if not is_shown and Path(_OLD + real).is_dir():
            system.restrict_mount(_NEW + real, MS_RDONLY, recursive=False)


def _bind(real: str, *, needed: bool, flags: int) -> None:
    """Show a path of the old root, without links in it, in the new one."""
    source, target = _OLD + real, Path(_NEW + real)
    if not os.path.lexists(source):
        if needed:
            raise FileNotFoundError(2, "a path that has to be readable isn't there", real)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True) if Path(source).is_dir() else target.touch(exist_ok=True)
    system.mount(source, str(target), None, MS_BIND | MS_REC)
    system.restrict_mount(str(target), flags, recursive=True)


def _copy_link(path: str) -> None:
    """/bin and its like where they are links to what is shown."""
    if Path(_OLD + path).is_symlink():
        leads_to = os.readlink(_OLD + path)  # noqa: PTH115 - Path.readlink would tidy the text
        if Path(_NEW, leads_to.lstrip("/")).exists() and not os.path.lexists(_NEW + path):
            Path(_NEW + path).symlink_to(leads_to)


def _resolve(path: str) -> str:
    """Where a path of the old root leads to; the links on the way are made in the new root as well."""
    rest = [part for part in path.split("/") if part][::-1]
    seen: list[str] = []
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            del seen[-1:]
            continue
        here = "/".join(["", *seen, part])
        if not Path(_OLD + here).is_symlink():
            seen.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(40, "too many symbolic links", path)
        leads_to = os.readlink(_OLD + here)  # noqa: PTH115 - Path.readlink would tidy the text
        link = Path(_NEW + here)
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(leads_to)
        if leads_to.startswith("/"):
            seen = []
        rest += [part for part in leads_to.split("/") if part and part != "."][::-1]
    return "/".join(["", *seen]) if seen else "/"
