"""Landlock: which files a process may open, set by itself and for good."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

from toolrl_plugin_python.jail import system

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_FIRST = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_BIND_AND_CONNECT = 3
_SCOPES = 3

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE_DEVICE = _READ_FILE | _WRITE_FILE
NEEDED_ALONE = 3
"""Older versions let a file be cut to nothing."""
SCOPES_SIGNALS = 6
"""From this version on a process can't signal those outside."""


def version() -> int:
    """The version of Landlock that the kernel speaks, 0 where it has none or doesn't use it."""
    try:
        return system.call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def without(readable: Iterable[str], hidden: Iterable[str]) -> tuple[list[str], list[str]]:
    """Paths that cover what is readable and not hidden, and the folders that had to be taken apart for that: a rule
    can't take away what another one gives."""
    covered = {os.path.realpath(path) for path in hidden}
    found: dict[str, None] = {}
    parted: dict[str, None] = {}
    for path in readable:
        waiting = [path]
        while waiting:
            here = waiting.pop()
            real = os.path.realpath(here)
            if real in covered and here != path:
                continue
            if any(other.startswith(real + "/") for other in covered):
                parted[here] = None
                waiting += [entry.path for entry in os.scandir(here)]
            else:
                found[here] = None
    return list(found), list(parted)


def restrict(
    readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], listable: Iterable[str] = ()
) -> None:
    """From now on open only what lies at or below these paths, and list the names in the folders `listable`;
    no_new_privs has to be set. Network ports, abstract sockets and signals to processes outside go too, where the
    kernel can. Raises OSError."""
    known = version()
    if known < 1:
        raise OSError(errno.EOPNOTSUPP, "the kernel has no Landlock")
    handled = _ALL_OF_FIRST
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        handled |= right if known >= since else 0
    fields = [handled, *([_BIND_AND_CONNECT] if known >= 4 else []), *([_SCOPES] if known >= SCOPES_SIGNALS else [])]
    raw = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = system.call("landlock_create_ruleset", raw, len(raw), 0)
    try:
        for group, access in (
            (readable, READ),
            (listable, _READ_DIR),
            (writable, handled),
            (devices, WRITE_DEVICE),
        ):
            for path in group:
                _allow(ruleset, path, access & handled)
        system.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, handle))
        system.call("landlock_add_rule", ruleset, 1, rule, 0)
    finally:
        os.close(handle)
