"""What one job uses, from one look at its processes to the next, and which limit it has passed.

Where no control group counts memory, it is what /proc shows of the job's processes, and the most that the kernel may
keep for their mappings and descriptors. Locks are in no group's memory either.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from toolrl_plugin_python.jail import cell, system
from toolrl_plugin_python.jail.cgroups import ControlGroup
from toolrl_plugin_python.jail.disk import DiskUsage
from toolrl_plugin_python.jail.processes import Process, folder_of, kilobytes, private_memory, send
from toolrl_plugin_python.jail.settings import JobLimits
from toolrl_plugin_python.jail.walls import MB, OPEN_FILES, JobPlace

_MAPPING, _LINK_TO_ANCESTOR = 448, 64
"""Bytes of slab for a mapping, and more of them for each process that it was inherited from."""
_MOST_MAPPINGS = 65530
_SOCKET, _OTHER = 256 << 10, 64 << 10
"""What a descriptor may hold: the send buffer of a socket; a pipe's pages, what an epoll watches, or a timer."""
_LOCK = 32 << 10
"""A lock of a range of a file takes far less, but to look at very many takes long."""


class JobMemory:
    """Counts, from look to look."""

    def __init__(self, spare_mappings: int) -> None:
        self._spare = spare_mappings
        """Of each process: those that every fork begins with."""
        self._unreadable: set[tuple[int, int]] = set()

    def look(self, processes: Sequence[Process], most: int) -> int:
        """Bytes; where they seem to be more than `most`, pages that processes share are counted once."""
        mapping = _MAPPING + _LINK_TO_ANCESTOR * len(processes)
        tables = [kilobytes(f"{folder_of(one)}/status").get(b"VmPTE", 0) * 1024 for one in processes]
        if sum(tables) > most:
            return sum(tables)  # to read very many mappings takes long
        total, holding = 0, dict[str, int]()
        before, self._unreadable = self._unreadable, set()
        for one in processes:
            try:
                holding |= buffers(one)
                total += mapping * max(0, Path(folder_of(one), "maps").read_bytes().count(b"\n") - self._spare)
            except PermissionError:
                # It may be about to begin, or hide behind a program that can't be read: then the worst is true.
                self._unreadable.add(one.key)
                if one.key in before:
                    total += _MOST_MAPPINGS * mapping + OPEN_FILES * _SOCKET
            except OSError:
                continue  # it is gone
            if total + sum(holding.values()) > most:
                return total + sum(holding.values())
        total += sum(holding.values())
        sizes = [one.resident + size for one, size in zip(processes, tables, strict=True)]
        if total + sum(sizes) <= most:
            return total + sum(sizes)
        exact = [private_memory(one) for one in processes]
        return total + sum(size if it is None else it for size, it in zip(sizes, exact, strict=True))


def locks(processes: Sequence[Process]) -> int:
    """Bytes that stand for locks alone."""
    total = 0
    for one in processes:
        with suppress(OSError):
            total += sum(size for name, size in buffers(one).items() if name.startswith("lock:"))
    return total


def buffers(process: Process) -> dict[str, int]:
    """What a process's descriptors hold in the kernel, by the name of what they lead to. Raises OSError."""
    folder = f"{folder_of(process)}/fd"
    held = {}
    for name in os.listdir(folder):  # noqa: PTH208
        try:
            found = os.stat(f"{folder}/{name}")  # noqa: PTH116
            with open(f"{folder}info/{name}", "rb") as file:  # noqa: PTH123
                locks_of_it = file.read().count(b"\nlock:")
        except FileNotFoundError:
            continue  # closed since
        # Any kind of descriptor takes locks, a pipe and a socket as well.
        held[f"lock:{process.pid} {name}"] = _LOCK * locks_of_it
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFSOCK:
            held[f"{found.st_dev}:{found.st_ino}"] = _SOCKET
        elif kind == stat.S_IFIFO:
            held[f"{found.st_dev}:{found.st_ino}"] = _OTHER
        elif kind == 0:  # epoll, timers, signals and their kind, which share one inode
            held[f"{process.pid} {name}"] = _OTHER
    return held


_UNSURE_LOOKS, _STOPPED_LOOKS = 3, 20
"""After so many looks at files in a row during which some went away, a job is stopped for a look."""


class ProcessorTime:
    """Tell it of every look; `renew` begins anew.

    Two sums are kept, and the larger one counts, since neither sees everything. That of the living holds what children
    took that their parent waited for; where it ignores SIGCHLD, the kernel forgets it. That of all that were
    ever seen holds it, but not what lived between two looks. A control group sees all.
    """

    def __init__(self, group: ControlGroup | None = None) -> None:
        self._group = group
        self._alive: dict[tuple[int, int], float] = {}
        self._gone = 0.0
        self._sums = (0.0, 0.0)
        self._before = (0.0, 0.0)

    def look(self, processes: Iterable[Process]) -> float:
        """Seconds since the last `renew`, as far as they are known."""
        whole = self._group.cpu_seconds() if self._group else None
        if whole is not None:
            self._sums = (whole, 0.0)
        else:
            seen = list(processes)
            now = {one.key: one.own_seconds for one in seen}
            self._gone += sum(seconds for key, seconds in self._alive.items() if key not in now)
            self._alive = now
            self._sums = (sum(one.cpu_seconds for one in seen), self._gone + sum(now.values()))
        return max(sum_ - before for sum_, before in zip(self._sums, self._before, strict=True))

    def renew(self) -> None:
        """From the last look on it counts anew."""
        self._before = self._sums


class Usage:
    """Processor time, memory and files."""

    def __init__(self, limits: JobLimits, place: JobPlace, group: ControlGroup | None, reader: int | None) -> None:
        """`reader` is a user with access to the job's files and processes, where this one has none."""
        self._limits = limits
        self._place = place
        self._group = group
        self._reader = reader
        self.cpu = ProcessorTime(group)
        self._memory = JobMemory(place.base_mappings)
        self._unsure = 0

    def excess(self, processes: list[Process], *, disk: bool) -> str:
        """Which limit is passed, or nothing. The first of the processes is the job's own, the others the program's;
        `disk` is whether files are counted."""
        limits, program = self._limits, processes[1:]
        if self.cpu.look(processes) > limits.cpu_seconds > 0:
            return "cpu"
        if limits.memory_mb and self._passes_memory(program):
            return "memory"
        return "disk" if disk and limits.scratch_mb and self._passes_disk(program) else ""

    def _passes_memory(self, program: list[Process]) -> bool:
        most = most_memory(self._limits, self._place)
        with system.as_user(self._reader):
            counted = self._memory.look(program, most) if self._group is None else locks(program)
        if self._group is not None:
            return self._group.was_full() or counted + self._group.memory() > most
        return counted > most

    def _passes_disk(self, program: list[Process]) -> bool:
        most = self._limits.scratch_mb * MB
        found = self._files(program, most)
        self._unsure = 0 if found.sure else self._unsure + 1
        if self._unsure < _UNSURE_LOOKS or found.total > most:
            return found.total > most
        self._unsure = 0
        # What moves from folder to folder may be seen in none. Stopped, it stays where it is.
        try:
            for _ in range(_STOPPED_LOOKS):
                self._signal(program, signal.SIGSTOP)
                found = self._files(program, most)
                if found.sure:
                    break
            return found.total > most or not found.sure
        finally:
            self._signal(program, signal.SIGCONT)

    def _files(self, program: list[Process], most: int) -> DiskUsage:
        found = DiskUsage(most + 1)
        with system.as_user(self._reader):
            found.add_tree(self._place.scratch)
            found.add_nameless(program, self._place.scratch, self._limits.file_mb * MB)
        return found

    def _signal(self, program: list[Process], number: int) -> None:
        if self._place.user is not None:
            cell.signal_user(self._place.user, number)
        else:
            for one in program:
                send(one, number)


def most_memory(limits: JobLimits, place: JobPlace) -> int:
    """Bytes that a job may have, with what every fork begins with; 0 for no limit."""
    return limits.memory_mb and limits.memory_mb * MB + place.base_resident
