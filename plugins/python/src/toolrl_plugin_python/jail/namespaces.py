"""Namespaces of a job's own: processes, mounts, network, IPC, host name, cgroups, and users where that can be had.

Root makes all but the user namespace with its own rights, then becomes a user that owns nothing; another user makes the
user namespace first and has rights in it alone. Either way no capability is left at the end. A user namespace also
makes the limit of processes one of this job: the kernel counts it there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from toolrl_plugin_python.jail import mounts, system
from toolrl_plugin_python.jail.settings import Settings
from toolrl_plugin_python.jail.walls import become

HOST_NAME = "sandbox"
INSIDE_ID = 1000
"""The user and group that a program sees itself as."""
_CAP_SYS_ADMIN = 1 << 21
_CAP_SETUID = 1 << 7
_OWN_USERS = (0x70000000, 1 << 22)
_FEW_USERS = (30000, 30000)
"""First number and how many, for users that belong to one job; the second where a container maps only 65536."""
_FEW_SENDERS = (60000, 5000)
_ALL_BUT_USER = (
    system.CLONE_NEWNS
    | system.CLONE_NEWPID
    | system.CLONE_NEWNET
    | system.CLONE_NEWIPC
    | system.CLONE_NEWUTS
    | system.CLONE_NEWCGROUP
)


def own_user(founder: int) -> int | None:
    """The user of a job, by its founder's process id, or None if this process can't become one. Where few users are
    mapped, as in a container, founders whose numbers are far apart share one: see `fork_founder`."""
    if os.geteuid() != 0 or not system.capabilities() & _CAP_SETUID:
        return None
    mapped = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    highest = max(int(first) + int(count) - 1 for first, _, count in mapped)
    first, count = _OWN_USERS if highest >= _OWN_USERS[0] + 2 * _OWN_USERS[1] else _FEW_USERS
    return first + founder % count


def fork_founder(taken: Collection[int]) -> int:
    """Fork until the child's `own_user` isn't one of `taken`, the users of jobs that run. Returns as os.fork does."""
    while True:
        founder = os.fork()
        if own_user(founder or os.getpid()) not in taken:
            return founder
        if founder == 0:
            os._exit(0)
        os.waitpid(founder, 0)


def sender_to(user: int) -> int:
    """The user whose processes may signal those of a job's user and can't be signalled by them: no job has it."""
    first, count = _FEW_SENDERS
    return user + _OWN_USERS[1] if user >= _OWN_USERS[0] else first + user % count


def _another_user() -> int:
    user = own_user(os.getpid())
    if user is None:
        raise PermissionError(1, "root without the right to become another user")
    return user


def enter(settings: Settings, scratch_mb: int) -> None:
    """Move this process into namespaces and onto a root of its own; the next fork is process 1. Raises OSError."""
    if os.geteuid() == 0 and system.capabilities() & _CAP_SYS_ADMIN:
        _enter_as_root(settings, scratch_mb)
    else:
        if os.geteuid() == 0:
            # The kernel doesn't count root's processes, not even in a namespace.
            become(_another_user())
            system.prctl(system.PR_SET_DUMPABLE, 1)
        user, group = os.geteuid(), os.getegid()  # afterwards they have no name until they are mapped
        system.unshare(system.CLONE_NEWUSER | _ALL_BUT_USER)
        with _own_proc() as proc:
            _map_ids(proc, user, group)
        inside = (INSIDE_ID, INSIDE_ID)
        mounts.build_root(settings, scratch_mb, inside, inside)
        socket.sethostname(HOST_NAME)
    system.drop_capabilities()
    # So that the keeper, with the rights of the same user, can read how much memory is used.
    system.prctl(system.PR_SET_DUMPABLE, 1)


def _enter_as_root(settings: Settings, scratch_mb: int) -> None:
    user = _another_user()
    system.unshare(_ALL_BUT_USER)
    with _own_proc() as proc:
        mounts.build_root(settings, scratch_mb, (user, user), (INSIDE_ID, INSIDE_ID))
        socket.sethostname(HOST_NAME)
        become(user)
        system.prctl(system.PR_SET_DUMPABLE, 1)  # The files of /proc belong to root otherwise.
        try:
            system.unshare(system.CLONE_NEWUSER)
        except OSError:
            return  # The user's number alone keeps the count of processes apart.
        _map_ids(proc, user, user)


@contextmanager
def _own_proc() -> Iterator[int]:
    """This process's folder of /proc, kept open over a change of root."""
    handle = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _map_ids(proc: int, user: int, group: int) -> None:
    for name, text in (
        ("uid_map", f"{INSIDE_ID} {user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{INSIDE_ID} {group} 1"),
    ):
        handle = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
