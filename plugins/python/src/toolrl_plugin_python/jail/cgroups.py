"""Control groups: one a job, in which the kernel bounds memory, processes and processor time, and counts what /proc
shows of no process: page tables, mappings, buffers of sockets and pipes, children that no parent waited for.

Groups are made below the keeper's own group, or beside it in version 2, where that may be written: as root outside of
most containers, or where groups are delegated to the user. Elsewhere `job_memory` counts.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from toolrl_plugin_python.jail.processes import read_process
from toolrl_plugin_python.jail.settings import JobLimits

_USED = ("memory", "pids", "cpuacct")
_SPARE_PROCESSES = 4
"""Of the job's own, besides the program's."""
_PERIOD = 1_000_000
"""Microseconds. What a job may use in all, it may use in one such period: a job within its limit isn't slowed down."""


def find() -> list[Path]:
    """Folders in which a job's groups can be made: one for each hierarchy of version 1 that is needed, or the one of
    version 2. Empty where memory can't be bounded."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        for name in ("",) if kind == "cgroup2" else options.split(",") if kind == "cgroup" else ():
            inside = os.path.relpath(own.get(name, ".."), root)
            if not inside.startswith(".."):
                found.setdefault(name, Path(point, inside))
    if "memory" in found:
        folders = list(
            dict.fromkeys(found[name] for name in _USED if name in found and os.access(found[name], os.W_OK))
        )
        return folders if found["memory"] in folders else []
    return [folder for folder in _version_2(found.get("")) if os.access(folder, os.W_OK)][:1]


def _version_2(own: Path | None) -> list[Path]:
    """Where groups with a controller of memory can stand. Only the root of all can have them beside processes of its
    own; another group's stand beside it."""
    if own is None:
        return []
    with suppress(OSError):
        (own / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    return [folder for folder in (own, own.parent) if "memory" in _read(folder / "cgroup.subtree_control").split()]


def remove_stale(folders: list[Path]) -> None:
    """Remove the groups of keepers that were killed. The kernel ended their jobs."""
    for folder in folders:
        for path in folder.glob(f"{_prefix()}-*"):
            keeper, started = map(int, path.name.split("-")[2:4])
            process = read_process(keeper)
            if process is None or process.started != started:
                with suppress(OSError):
                    path.rmdir()


class ControlGroup:
    """The groups of one job, in all hierarchies."""

    def __init__(self, folders: list[Path], number: int, limits: JobLimits, memory: int) -> None:
        """`memory` is the most bytes that the kernel gives, 0 for no limit. Raises OSError."""
        keeper = read_process(os.getpid())
        assert keeper is not None
        name = f"{_prefix()}-{keeper.pid}-{keeper.started}-{number}"
        self._paths = [folder / name for folder in folders]
        try:
            for path in self._paths:
                path.mkdir()
            self._bound(limits, memory)
        except OSError:
            self.remove()
            raise

    def _bound(self, limits: JobLimits, memory: int) -> None:
        if memory:
            self._set(str(memory), "memory.limit_in_bytes", "memory.max")
            self._set(str(memory), "memory.memsw.limit_in_bytes")
            self._set("0", "memory.swap.max")
            self._set("1", "memory.oom.group")
        if limits.processes:
            self._set(str(limits.processes + _SPARE_PROCESSES), "pids.max")
        if limits.cpu_seconds:
            quota = max(1000, int(limits.cpu_seconds * _PERIOD))
            self._set(f"{quota} {_PERIOD}", "cpu.max")
            self._set(str(_PERIOD), "cpu.cfs_period_us")
            self._set(str(quota), "cpu.cfs_quota_us")

    def _set(self, value: str, *names: str) -> None:
        """Write one of these files, where it is there."""
        for path in (path / name for path in self._paths for name in names):
            if path.exists():
                path.write_text(value)

    def _get(self, *names: str) -> str:
        return next((text for path in self._paths for name in names if (text := _read(path / name))), "")

    def _entry(self, key: str, *names: str) -> int:
        """A line `key value` of one of these files."""
        lines = (line.split() for line in self._get(*names).splitlines())
        return next((int(words[1]) for words in lines if words[0] == key), 0)

    def enter(self) -> None:
        """Move this process into them. Raises OSError."""
        for path in self._paths:
            (path / "cgroup.procs").write_text("0")

    def memory(self) -> int:
        """Bytes, the kernel's own included, without files."""
        files = self._entry("cache", "memory.stat") or self._entry("file", "memory.stat")
        return int(self._get("memory.usage_in_bytes", "memory.current") or 0) - files

    def was_full(self) -> bool:
        """True where the kernel killed one of its processes for memory."""
        return self._entry("oom_kill", "memory.oom_control", "memory.events") > 0

    def cpu_seconds(self) -> float | None:
        """Processor time of all that ever ran in it; None where that isn't counted."""
        if nanoseconds := self._get("cpuacct.usage"):
            return int(nanoseconds) / 1e9
        return self._entry("usage_usec", "cpu.stat") / 1e6 or None

    def let_go(self) -> None:
        """Slow it down no more: it is to end."""
        with suppress(OSError):
            self._set("max", "cpu.max")
            self._set("-1", "cpu.cfs_quota_us")

    def remove(self) -> bool:
        """True where nothing is left of it; a group with a process in it stays."""
        for path in self._paths:
            with suppress(OSError):
                path.rmdir()
        return not any(path.exists() for path in self._paths)


def _prefix() -> str:
    """A keeper's number names it in its process namespace alone."""
    return f"toolrl-{Path('/proc/self/ns/pid').stat().st_ino}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
