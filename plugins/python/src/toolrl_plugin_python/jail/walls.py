"""The walls around a program, as its own process puts them up: limits, Landlock, the system call filter.

Namespaces come before, in `namespaces`: they have to be made by a parent. What stands here holds for the process and
for all that it starts, and can't be taken down.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass

from toolrl_plugin_python.jail import landlock, mounts, seccomp, system
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, JobLimits, Settings

MB = 1 << 20
OPEN_FILES = 256
_ADDRESS_SLACK = 1024 * MB
"""Address space over the memory limit: reserved and shared mappings, which `RLIMIT_DATA` leaves out."""


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where and as whom one job runs."""

    scratch: str
    """The working folder."""
    user: int | None
    """The user and group to become, or None to stay."""
    base_data: int = 0
    """Bytes of data that the process had before the job's own."""
    base_address: int = 0
    """Bytes of address space, likewise."""
    base_resident: int = 0
    """Bytes of memory, likewise."""
    base_mappings: int = 0


def enter(settings: Settings, limits: JobLimits, place: JobPlace) -> None:
    """Put up all walls. Raises OSError where one can't be had."""
    os.chdir(place.scratch)
    if settings.mode not in (NAMESPACES, LANDLOCK):
        return
    if settings.mode == LANDLOCK:
        if settings.own_user and place.user is None:
            raise PermissionError(errno.EPERM, "this root can't become another user")
        become(place.user)
        system.drop_capabilities()
        # So that the keeper, with the rights of the same user, can read how much memory is used.
        system.prctl(system.PR_SET_DUMPABLE, 1)
    set_limits(limits, place)
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    if settings.mode == NAMESPACES:
        if landlock.version():
            landlock.restrict(["/"], list(mounts.WRITABLE), mounts.DEVICES)
        seccomp.install(seccomp.Rules(processes=not limits.renewed, timers=not limits.renewed))
        return
    known = landlock.version()
    if known < landlock.NEEDED_ALONE:
        raise OSError(errno.EOPNOTSUPP, f"Landlock has version {known}, {landlock.NEEDED_ALONE} is needed")
    readable, parted = landlock.without(settings.readable, settings.hidden)
    landlock.restrict([*readable, mounts.ZERO], [place.scratch], mounts.DEVICES, parted)
    apart = place.user is not None
    signals = apart or known >= landlock.SCOPES_SIGNALS
    several = apart and not limits.renewed
    seccomp.install(
        seccomp.Rules(processes=several, signals=signals, metadata=apart, paths=False, timers=not limits.renewed)
    )


def become(user: int | None) -> None:
    """Change to a user and a group of that number, and leave all other groups."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def set_limits(limits: JobLimits, place: JobPlace) -> None:
    """Resource limits; those of the whole job together are the keeper's."""
    wanted = {
        resource.RLIMIT_CORE: 1,  # fewer than one isn't kept where dumps go to a program; see `seccomp`
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
        resource.RLIMIT_FSIZE: limits.file_mb * MB,
    }
    if limits.cpu_seconds and not limits.renewed:
        wanted[resource.RLIMIT_CPU] = int(limits.cpu_seconds) + 1
    if limits.processes:
        wanted[resource.RLIMIT_NPROC] = limits.processes
    if limits.memory_mb:
        wanted[resource.RLIMIT_DATA] = place.base_data + limits.memory_mb * MB
        if limits.interpreter:
            wanted[resource.RLIMIT_AS] = place.base_address + limits.memory_mb * MB + _ADDRESS_SLACK
    for name, value in wanted.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
