"""System calls that Python's `os` lacks, each as a function that raises OSError."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, PR_SET_DUMPABLE = 1, 2, 4
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_CAPABILITY_VERSION = 0x20080522

_SAME = {
    "mount_setattr": 442, "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip
OWN: dict[str, dict[str, int]] = {
    "x86_64": {"pivot_root": 155, "seccomp": 317, "capset": 126, **_SAME},
    "aarch64": {"pivot_root": 41, "seccomp": 277, "capset": 91, **_SAME},
}
"""Calls that the walls themselves are built with; not allowed inside."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
MACHINE = os.uname().machine
_numbers = OWN.get(MACHINE, {})


def call(name: str, *arguments: object) -> int:
    """One of the system calls of `OWN`. Integers are passed as longs, None as a null pointer."""
    number = _numbers.get(name)
    if number is None:
        raise OSError(38, f"{name} isn't known on {MACHINE}")
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *plain), name)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """New namespaces for this process; a new process id namespace is for its children."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(result, f"mount {source or ''} on {target}")


def unmount(target: str) -> None:
    """Take a mount away, also where it is in use."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and move the old root to `old`."""
    call("pivot_root", os.fsencode(new), os.fsencode(old))


def restrict_mount(path: str, flags: int, *, recursive: bool) -> None:
    """Set MS_RDONLY, MS_NOSUID, MS_NODEV or MS_NOEXEC on a mount, and, with `recursive`, on those below it."""
    # The bits of mount_setattr are those of mount for these four.
    attributes = struct.pack("4Q", flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC), 0, 0, 0)
    how = _AT_RECURSIVE if recursive else 0
    call("mount_setattr", _AT_FDCWD, os.fsencode(path), how, attributes, len(attributes))


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    """prctl(2)."""
    arguments = [ctypes.c_ulong(number) for number in (value, third, 0, 0)]
    return _checked(_libc.prctl(ctypes.c_int(option), *arguments), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability, now and over any exec. Raises OSError where one stays."""
    bounding = [(PR_CAPBSET_DROP, number) for number in range(64)]
    for option, value in (*bounding, (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)):
        # The kernel may know fewer; without CAP_SETPCAP, no_new_privs keeps an exec from gaining any.
        with suppress(OSError):
            prctl(option, value)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call("capset", ctypes.byref(header), ctypes.byref(nothing))


def capabilities() -> int:
    """The effective capabilities of this process as a bit set; needs /proc."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


@contextmanager
def as_user(user: int | None) -> Iterator[None]:
    """Have the rights of this user and group alone, those on its processes in /proc included; None changes nothing."""
    if user is None:
        yield
        return
    death = ctypes.c_int()
    _checked(_libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death)), "prctl")
    own, own_group = os.geteuid(), os.getegid()
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(own)
        os.setegid(own_group)
        # A change of user takes these away.
        prctl(PR_SET_PDEATHSIG, death.value)
        prctl(PR_SET_DUMPABLE, 1)
