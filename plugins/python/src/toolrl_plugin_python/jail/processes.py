"""What the processes of a job use together, read from /proc: nothing in the kernel counts it where there is no cgroup.

A process that isn't a descendant of the keeper can't become one, so it is looked at once. The list of these is
made anew every second, because numbers are used again.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_FORGET_SECONDS = 1.0
_UNSURE = 0
"""No process has this number."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    state: str
    cpu_seconds: float
    """Its own, and that of children it has waited for."""
    started: int
    """Clock ticks since the machine's start; with `pid` it names a process for good."""
    resident: int
    """Bytes of memory, shared pages included."""
    own_seconds: float = 0.0
    """Its own processor time alone."""
    is_alive: bool = True
    """It still runs. One whose first thread has ended looks like a zombie, though others go on."""

    @property
    def key(self) -> tuple[int, int]:
        """Names the process for good."""
        return (self.pid, self.started)


def read_process(pid: int) -> Process | None:
    """A process, or None where it is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    if fields is None:
        return None
    state = fields[0].decode()
    is_alive = state not in "ZX"
    resident = fields[21]
    if not is_alive and int(fields[17]) > 1:
        thread = _living_thread(pid)
        is_alive = thread is not None
        resident = (_stat(f"{thread}/stat") or fields)[21]
    own = int(fields[11]) + int(fields[12])
    ticks = own + int(fields[13]) + int(fields[14])
    return Process(
        pid=pid,
        parent=int(fields[1]),
        state=state,
        cpu_seconds=ticks / _TICKS,
        started=int(fields[19]),
        resident=int(resident) * _PAGE,
        own_seconds=own / _TICKS,
        is_alive=is_alive,
    )


def _stat(path: str) -> list[bytes] | None:
    """The fields of a stat file from the state on, or None where it is gone."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - read many times a second
            raw = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold any byte.
    return raw[raw.rindex(b")") + 2 :].split()


def _living_thread(pid: int) -> str | None:
    """The folder of a living thread where the first one has ended: what /proc shows of memory is the thread's."""
    try:
        threads = [f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return None
    return next((path for path in threads if (fields := _stat(f"{path}/stat")) and fields[0] not in (b"Z", b"X")), None)


def folder_of(process: Process) -> str:
    """The folder of /proc that shows its memory and descriptors."""
    folder = f"/proc/{process.pid}"
    return (_living_thread(process.pid) or folder) if process.state in "ZX" else folder


def private_memory(process: Process) -> int | None:
    """Bytes of private memory, this process's share of what it shares, and page tables; None where that can't be
    read."""
    folder = folder_of(process)
    rollup, status = kilobytes(f"{folder}/smaps_rollup"), kilobytes(f"{folder}/status")
    total = [rollup.get(b"Pss_Anon"), rollup.get(b"Pss_Shmem"), status.get(b"VmPTE")]
    return None if None in total else sum(value or 0 for value in total) * 1024


def kilobytes(path: str) -> dict[bytes, int]:
    """The sizes in a file of /proc; empty where it can't be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    # A process may have any name, `1 kB` too.
    return {line.split(b":")[0]: int(line.split()[1]) for line in lines if line[:2] in (b"Vm", b"Ps")}


class Trees:
    """Finds descendants."""

    def __init__(self) -> None:
        self._foreign: set[int] = set()
        self._made = 0.0

    def of(self, roots: set[int]) -> dict[int, list[Process]]:
        """Each root with its living descendants, itself first; zombies are left out. What starts during the look, or
        moves from parent to parent, may be missed."""
        now = time.monotonic()
        if now - self._made > _FORGET_SECONDS:
            self._foreign, self._made = set(), now
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        self._foreign = (self._foreign & present) - roots
        found = {pid: process for pid in present - self._foreign if (process := read_process(pid)) is not None}
        # The keeper's other descendants may be asked for later.
        owners: dict[int, int | None] = {}
        ends = roots | {os.getpid()}
        owners |= dict.fromkeys(self._foreign, None)
        trees: dict[int, list[Process]] = {root: [found[root]] for root in roots if root in found}
        for pid, process in found.items():
            owner = _owner(pid, found, ends, owners)
            if owner is None:
                self._foreign.add(pid)
            elif owner in trees and pid != owner and process.is_alive:
                trees[owner].append(process)
        return trees


def _owner(pid: int, found: dict[int, Process], roots: set[int], owners: dict[int, int | None]) -> int | None:
    """The root that a process descends from, None for one that descends from none, or _UNSURE."""
    path = []
    while pid not in owners:
        if pid in roots:
            owners[pid] = pid
            break
        path.append(pid)
        process = found.get(pid)
        if process is None or len(path) > len(found):
            owners[pid] = _UNSURE
            break
        if process.parent == 0:
            owners[pid] = None
            break
        pid = process.parent
    owner = owners[pid]
    owners.update(dict.fromkeys(path, owner))
    return owner


def send(process: Process, number: int) -> None:
    """Signal exactly this process, never another one that got its number since."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            now = read_process(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
