"""Memory of a job where no control group counts it: what /proc shows of its processes, and the most that the kernel
may keep for their mappings and descriptors. Locks are in no group's memory either."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from toolrl_plugin_python.jail.processes import Process, folder_of, kilobytes, private_memory
from toolrl_plugin_python.jail.walls import OPEN_FILES

_MAPPING, _LINK_TO_ANCESTOR = 448, 64
"""Bytes of slab for a mapping, and more of them for each process that it was inherited from."""
_MOST_MAPPINGS = 65530
_SOCKET, _OTHER = 256 << 10, 64 << 10
"""What a descriptor may hold: the send buffer of a socket; a pipe's pages, or what an epoll watches."""
_LOCK = 32 << 10
"""A lock of a range of a file takes far less, but to look at very many takes long."""
_CHUNK = 1 << 18


class JobMemory:
    """Counts, from look to look."""

    def __init__(self, spare_mappings: int) -> None:
        self._spare = spare_mappings
        """Of each process: those that every fork begins with."""
        self._unreadable: set[tuple[int, int]] = set()

    def look(self, processes: Sequence[Process], most: int) -> int:
        """Bytes; where they seem to be more than `most`, pages that processes share are counted once."""
        mapping = _MAPPING + _LINK_TO_ANCESTOR * len(processes)
        total, holding = 0, dict[str, int]()
        before, self._unreadable = self._unreadable, set()
        for one in processes:
            try:
                holding |= buffers(one)
                total += mapping * max(0, count_mappings(one) - self._spare)
            except PermissionError:
                # It may be about to begin, or hide behind a program that can't be read: then the worst is true.
                self._unreadable.add(one.key)
                if one.key in before:
                    total += _MOST_MAPPINGS * mapping + OPEN_FILES * _SOCKET
            except OSError:
                continue  # it is gone
            if total > most:
                return total  # to read very many mappings takes long
        total += sum(holding.values())
        sizes = [one.resident + kilobytes(f"{folder_of(one)}/status").get(b"VmPTE", 0) * 1024 for one in processes]
        if total > most or total + sum(sizes) <= most:
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


def count_mappings(process: Process) -> int:
    """Mappings of a process. Raises OSError."""
    handle = os.open(f"{folder_of(process)}/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        count = 0
        while part := os.read(handle, _CHUNK):
            count += part.count(b"\n")
        return count
    finally:
        os.close(handle)


def buffers(process: Process) -> dict[str, int]:
    """What a process's descriptors hold in the kernel, by the name of what they lead to. Raises OSError."""
    folder = f"{folder_of(process)}/fd"
    held = {}
    for name in os.listdir(folder):  # noqa: PTH208
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
        except FileNotFoundError:
            continue  # closed since
        except OSError:
            target = "/"  # a path that is too long
        if target.startswith("socket:"):
            held[target] = _SOCKET
        elif target.startswith("pipe:"):
            held[target] = _OTHER
        elif target == "anon_inode:[eventpoll]":
            held[f"{process.pid} {name}"] = _OTHER
        elif target.startswith("/"):
            with suppress(OSError), open(f"{folder}info/{name}", "rb") as file:  # noqa: PTH123
                held[f"lock:{process.pid} {name}"] = _LOCK * file.read().count(b"\nlock:")
    return held
