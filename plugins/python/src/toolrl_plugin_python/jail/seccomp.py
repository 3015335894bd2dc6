"""The system call filter: a classic BPF program that allows the calls of `ALLOWED` and refuses all others.

Some are allowed with certain arguments only: no new namespaces in clone, no socket but a connected pair, nothing that
names another process in prlimit and its like, no memory that is shared without a file, a few harmless ioctls. A call of
another architecture (32-bit, x32) ends the process.

What is left out on purpose, besides all that needs a privilege: sockets other than pairs, ptrace and reading other
processes' memory, memory that belongs to no process (memfd, System V and POSIX queues), keys, io_uring, userfaultfd,
bpf, perf, inotify and fanotify (their limits are the whole user's), extended attributes, sending of messages that may
carry descriptors (nothing counts them there), new namespaces and mounts, priorities of others, `sync`, splice and
vmsplice.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from toolrl_plugin_python.jail import system

_ALLOWED_CALLS = """
    read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62,
    pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286,
    pwritev2 328 287, access 21 -, pipe 22 -, select 23 -, dup 32 23, dup2 33 -, dup3 292 24, pipe2 293 59,
    sendfile 40 71, copy_file_range 326 285, fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46,
    getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38,
    renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37, unlink 87 -,
    unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78, openat 257 56,
    openat2 437 437, newfstatat 262 79, statx 332 291, faccessat 269 48, faccessat2 439 439, umask 95 166,
    statfs 137 43, fstatfs 138 44, fallocate 285 47, fadvise64 221 223, flock 73 32, fcntl 72 25, ioctl 16 29,
    getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
    utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, chmod 90 -, fchmod 91 52, fchmodat 268 53,
    fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, mknod 133 -, mknodat 259 33,
    mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, mremap 25 216, madvise 28 233, msync 26 227,
    mincore 27 232, mlock 149 228, munlock 150 229, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288,
    membarrier 324 283, clone 56 220, clone3 435 435, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281,
    exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, getpid 39 172, gettid 186 178, getppid 110 173,
    getpgid 121 155, getpgrp 111 -, setpgid 109 154, setsid 112 157, getsid 124 156, getuid 102 174,
    geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
    capget 125 90, uname 63 160, sysinfo 99 179, getrusage 98 165, times 100 153, getrlimit 97 163,
    setrlimit 160 164, prlimit64 302 261, prctl 157 167, arch_prctl 158 -, set_tid_address 218 96,
    set_robust_list 273 99, rseq 334 293, futex 202 98, futex_waitv 449 449, sched_yield 24 124,
    sched_getaffinity 204 123, sched_setaffinity 203 122, sched_getparam 143 121, sched_getscheduler 145 120,
    sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
    getpriority 140 141, setpriority 141 140, restart_syscall 219 128, getcpu 309 168, personality 135 92,
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
    rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, kill 62 129, tkill 200 130,
    tgkill 234 131, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102, timer_create 222 107,
    timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, signalfd 282 -,
    signalfd4 289 74, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
    gettimeofday 96 169, time 201 -, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,
    eventfd 284 -, eventfd2 290 19, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
    epoll_pwait 281 22, epoll_pwait2 441 441, ppoll 271 73, pselect6 270 72, socketpair 53 199, sendto 44 206,
    recvfrom 45 207, recvmsg 47 212, recvmmsg 299 243, shutdown 48 210,
    getsockname 51 204, getpeername 52 205, getsockopt 55 209, getrandom 318 278, close_range 436 436
"""

HIGHEST = 452
"""The highest number that was looked at. Newer calls answer ENOSYS, as on an older kernel, so that a library goes
another way; older ones that aren't allowed answer EPERM."""


def _table(text: str, column: int) -> dict[str, int]:
    rows = (entry.split() for entry in text.replace("\n", " ").split(",") if entry.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


ALLOWED: dict[str, dict[str, int]] = {"x86_64": _table(_ALLOWED_CALLS, 1), "aarch64": _table(_ALLOWED_CALLS, 2)}
"""Machine, as `os.uname` calls it, to name to number."""

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
_BY_PATH = ("utime", "utimes", "futimesat")
_ATTRIBUTES = ("getxattr", "lgetxattr", "listxattr", "llistxattr")
_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2}
"""Name to the argument that is the signal."""
_SIGCONT = 18


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between the ways of isolation."""

    processes: bool = True
    """New processes may be started; threads always may."""
    signals: bool = True
    """Signals may be sent: a namespace, Landlock or a user id of its own keeps them inside."""
    metadata: bool = True
    """Modes, owners and times of files may be changed: only the scratch folder's are the program's own."""
    paths: bool = True
    """Times and attributes of files may be asked for and changed by a path. Landlock knows nothing of these calls, so
    not if files of others are in sight. Those by a descriptor are of files that Landlock let it open."""
    timers: bool = True
    """Timers may send any signal, and a program SIGCONT: not where it is stopped and has to stay so. A thread that
    sends it again and again would take back the signal that stops it."""


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
        "setrlimit": _none_of(0, (_RLIMIT_CORE,), 0),
        "mmap": _MMAP,
        # They hide memory from the counts in /proc.
        "madvise": _none_of(2, (_MADV_COLD, _MADV_PAGEOUT), errno.EINVAL),
        # As for clone.
        "close_range": _one_of(2, (0, _CLOSE_RANGE_CLOEXEC), errno.EINVAL),
        # Blocks beyond a file's end are beyond the limit of its size too.
        "fallocate": _one_of(1, (0,), errno.EOPNOTSUPP),
        # A handle on the process at the other end: the run.
        "getsockopt": _none_of(2, (_SO_PEERPIDFD,), errno.ENOPROTOOPT),
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
    if not rules.processes:
        blocks["clone"] = [*_load(0), (_BITS, 1, 0, _CLONE_THREAD), _refuse(errno.EPERM), *blocks["clone"]]
    if not rules.timers:
        blocks["timer_create"] = [_refuse(errno.ENOSYS)]  # programs go on to alarm and setitimer
        blocks |= {name: _none_of(place, (_SIGCONT,), errno.EPERM) for name, place in _SIGNALS.items()}
    if not rules.paths:
        blocks |= {name: [_refuse(errno.EPERM)] for name in _BY_PATH}
        blocks |= {name: [_refuse(errno.EOPNOTSUPP)] for name in _ATTRIBUTES}  # shutil takes it for none
        # Without a path it is by descriptor. A pointer has two halves.
        blocks["utimensat"] = [*_require(1, 0), *_require(1, 0, half=4), _allow()]
    given = ((rules.processes, ("fork", "vfork")), (rules.signals, _SIGNALS), (rules.metadata, _METADATA))
    refused = [name for is_allowed, names in given if not is_allowed for name in names]
    blocks.update({name: [_refuse(errno.EPERM)] for name in refused})
    return {numbers[name]: block for name, block in blocks.items() if name in numbers}


def _load(argument: int, half: int = 0) -> list[Code]:
    """The low half of an argument; both machines are little-endian. Of most the kernel reads no more; `half=4` is the
    high one."""
    return [(_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * argument + half)]


def _allow() -> Code:
    return (_RETURN, 0, 0, _ALLOW)


def _refuse(number: int) -> Code:
    return (_RETURN, 0, 0, 0x00050000 | number)


def _require(argument: int, value: int, half: int = 0) -> list[Code]:
    return [*_load(argument, half), (_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _core_limit(new: int) -> list[Code]:
    """Ends prlimit: a new limit of core dumps isn't set, and the call succeeds all the same. 1 means none at all; less
    means that the kernel hands the dump to the machine's own program for dumps, if there is one."""
    low, high = _load(new), _load(new, half=4)
    asks = [*low, (_EQUAL, 0, 2, 0), *high, (_EQUAL, 1, 0, 0), _refuse(0)]
    return [*_load(1), (_EQUAL, 0, len(asks), _RLIMIT_CORE), *asks, _allow()]


def _one_of(argument: int, values: Iterable[int], otherwise: int) -> list[Code]:
    tests = [line for value in values for line in ((_EQUAL, 0, 1, value), _allow())]
    return [*_load(argument), *tests, _refuse(otherwise)]


def _none_of(argument: int, values: Iterable[int], otherwise: int) -> list[Code]:
    tests = [line for value in values for line in ((_EQUAL, 0, 1, value), _refuse(otherwise))]
    return [*_load(argument), *tests, _allow()]


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
