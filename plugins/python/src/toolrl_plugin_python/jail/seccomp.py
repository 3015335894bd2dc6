"""The system call filter: a classic BPF program that allows the calls of `numbers.ALLOWED` and refuses all others.

Some are allowed with certain arguments only: no new namespaces in clone, no socket but a connected pair, nothing that
names another process in prlimit and its like, no memory that is shared without a file, a few harmless ioctls. A call of
another architecture (32-bit, x32) ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from toolrl_plugin_python.jail import system
from toolrl_plugin_python.jail.numbers import ALLOWED, HIGHEST

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _BITS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16

_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD, _CLONE_FILES = 0x10000, 0x400
_CLOSE_RANGE_CLOEXEC = 4
_EXIT_SIGNAL_MASK, _SIGCHLD = 0xFF, 17
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_MADV_COLD, _MADV_PAGEOUT = 20, 21
_SO_PEERPIDFD = 77
_RLIMIT_CORE = 4
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 1, 5, 0xF
_IOCTLS = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 1030, 1032, 1033, 1034)
"""Descriptors and their flags, locks, pipe sizes, seals; no F_SETOWN, F_SETSIG, leases or directory notification, nor
locks of an open file: they stay behind a mapping when the descriptor is closed."""
_PRCTLS = (2, 3, 15, 16, 23, 27, 29, 30, 38, 39, 41, 42, 0x53564D41)
"""Get and set the name, timer slack, huge pages, names of mappings; get death signal, dumpable, capabilities,
no_new_privs."""
_PERSONALITIES = (0, 0xFFFFFFFF)
_METADATA = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
             "futimesat", "utimensat")  # fmt: skip
_SIGNALS = ("kill", "tkill", "tgkill")


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between the ways of isolation."""

    processes: bool = True
    """New processes may be started; threads always may."""
    signals: bool = True
    """Signals may be sent: a namespace, Landlock or a user id of its own keeps them inside."""
    metadata: bool = True
    """Modes, owners and times of files may be changed: only the scratch folder's are the program's own."""
    timers: bool = True
    """Timers may send any signal, SIGCONT too: not where a program is stopped and has to stay so."""


Code = tuple[int, int, int, int]


def program(machine: str, rules: Rules) -> list[Code]:
    """The filter as (code, jump if true, jump if false, value). Raises KeyError for a machine without a table."""
    numbers = ALLOWED[machine]
    special = _special(numbers, rules)
    code: list[Code] = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    for number, block in special.items():
        code += [(_EQUAL, 0, len(block), number), *block]
    for first, last in _ranges(number for number in numbers.values() if number not in special):
        code += [(_AT_LEAST, 0, 2, first), (_GREATER, 1, 0, last), (_RETURN, 0, 0, _ALLOW)]
    return [*code, (_GREATER, 0, 1, HIGHEST), _refuse(errno.ENOSYS), _refuse(errno.EPERM)]


def install(rules: Rules) -> None:
    """Put the filter on this process and all that it starts; no_new_privs has to be set. Raises OSError."""
    if system.MACHINE not in ALLOWED:
        raise OSError(
            errno.ENOSYS, f"no table of system calls for {system.MACHINE}; there is one for {', '.join(ALLOWED)}"
        )
    code = program(system.MACHINE, rules)
    raw = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
    system.call("seccomp", 1, 0, header)


def _special(numbers: dict[str, int], rules: Rules) -> dict[int, list[Code]]:
    """Number to the block that decides on it; every block ends by itself."""
    blocks: dict[str, list[Code]] = {
        "clone": _CLONE,
        "clone3": [_refuse(errno.ENOSYS)],  # its flags are behind a pointer; libraries fall back to clone
        "ioctl": _one_of(1, _IOCTLS, errno.ENOTTY),
        "fcntl": _one_of(1, _FCNTLS, errno.EPERM),
        "prctl": _one_of(0, _PRCTLS, errno.EPERM),
        "personality": _one_of(0, _PERSONALITIES, errno.EPERM),
        "prlimit64": [*_require(0, 0), *_core_limit(2)],
        "setrlimit": [*_load(0), (_EQUAL, 0, 1, _RLIMIT_CORE), _refuse(0), _allow()],
        "mmap": _MMAP,
        # They hide memory from the counts in /proc.
        "madvise": [
            *_load(2),
            (_EQUAL, 1, 0, _MADV_COLD),
            (_EQUAL, 0, 1, _MADV_PAGEOUT),
            _refuse(errno.EINVAL),
            _allow(),
        ],
        # As for clone.
        "close_range": _one_of(2, (0, _CLOSE_RANGE_CLOEXEC), errno.EINVAL),
        # Blocks beyond a file's end are beyond the limit of its size too.
        "fallocate": _one_of(1, (0,), errno.EOPNOTSUPP),
        # A handle on the process at the other end: the run.
        "getsockopt": [*_load(2), (_EQUAL, 0, 1, _SO_PEERPIDFD), _refuse(errno.ENOPROTOOPT), _allow()],
        "sched_setaffinity": _one_of(0, (0,), errno.EPERM),
        "setpriority": [*_require(0, 0), *_require(1, 0), _allow()],
        "getpriority": [*_require(0, 0), *_require(1, 0), _allow()],
        "socketpair": [
            *_require(0, _AF_UNIX),
            *_load(1),
            (_AND, 0, 0, _SOCK_TYPE_MASK),
            (_EQUAL, 2, 0, _SOCK_STREAM),
            (_EQUAL, 1, 0, _SOCK_SEQPACKET),  # Rust's programs start others with one
            _refuse(errno.EPERM),
            _allow(),
        ],
    }
    refused: list[str] = []
    if not rules.processes:
        blocks["clone"] = [*_load(0), (_BITS, 1, 0, _CLONE_THREAD), _refuse(errno.EPERM), *blocks["clone"]]
        refused += ["fork", "vfork"]
    if not rules.signals:
        refused += _SIGNALS
    if not rules.metadata:
        refused += _METADATA
    if not rules.timers:
        blocks["timer_create"] = [_refuse(errno.ENOSYS)]  # programs go on to alarm and setitimer
    blocks.update({name: [_refuse(errno.EPERM)] for name in refused})
    return {numbers[name]: block for name, block in blocks.items() if name in numbers}


def _load(argument: int) -> list[Code]:
    """The low half of an argument; both machines are little-endian. The kernel reads no more of these."""
    return [(_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * argument)]


def _allow() -> Code:
    return (_RETURN, 0, 0, _ALLOW)


def _refuse(number: int) -> Code:
    return (_RETURN, 0, 0, 0x00050000 | number)


def _require(argument: int, value: int) -> list[Code]:
    return [*_load(argument), (_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _core_limit(new: int) -> list[Code]:
    """Ends prlimit: a new limit of core dumps isn't set, and the call succeeds all the same. 1 means none at all; less
    means that the kernel hands the dump to the machine's own program for dumps, if there is one."""
    low, high = _load(new), [(_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * new + 4)]
    asks = [*low, (_EQUAL, 0, 2, 0), *high, (_EQUAL, 1, 0, 0), _refuse(0)]
    return [*_load(1), (_EQUAL, 0, len(asks), _RLIMIT_CORE), *asks, _allow()]


def _one_of(argument: int, values: Iterable[int], otherwise: int) -> list[Code]:
    tests: list[Code] = []
    for value in values:
        tests += [(_EQUAL, 0, 1, value), _allow()]
    return [*_load(argument), *tests, _refuse(otherwise)]


_CLONE: list[Code] = [
    *_load(0),
    (_BITS, 0, 1, _NEW_NAMESPACES),
    _refuse(errno.EPERM),
    # Descriptors of one thread alone are in no folder of a process.
    (_BITS, 0, 2, _CLONE_THREAD),
    (_BITS, 1, 0, _CLONE_FILES),
    _refuse(errno.EPERM),
    # A child may announce its end by SIGCHLD and by no other signal: SIGCONT would wake a parent that was stopped.
    (_AND, 0, 0, _EXIT_SIGNAL_MASK),
    (_EQUAL, 2, 0, 0),
    (_EQUAL, 1, 0, _SIGCHLD),
    _refuse(errno.EPERM),
    _allow(),
]
_MMAP: list[Code] = [
    *_load(3),
    # Shared memory without a file stays when its mapping goes, as long as one page of it is mapped somewhere: no limit
    # of a process counts it.
    (_BITS, 0, 2, _MAP_ANONYMOUS),
    (_BITS, 0, 1, _MAP_SHARED),
    _refuse(errno.EPERM),
    _allow(),
]


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers, each as (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
