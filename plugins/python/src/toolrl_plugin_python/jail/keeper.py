"""The keeper: a small process beside the run that starts jobs, watches what they use, and ends them.

It is forked from nothing: a fresh interpreter without the run's memory, descriptors or environment, so that its forks
are quick and carry no secret. It takes JSON messages on a socket, with the descriptors of a job attached, and reports
the end of each job. It lives as long as the run: the kernel kills it with its parent, and it kills its jobs likewise.

    {…}                                          first, the settings; answered by "settled" or "unsettled"
    {"op": "start", "id", "limits": …}           with descriptors: what the job has as 0, 1, 2, CHANNEL, JOB
    {"op": "watch", "id"}                        resume it where it is paused; its use of memory and time counts
    {"op": "pause", "id"}                        hold an interpreter still, which is one process; answered by "paused"
    {"op": "end", "id"}
    ← {"event": "ended", "id", "status", "reason", "error"}
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolrl_plugin_python.jail import cell, cgroups, namespaces, notebook, system
from toolrl_plugin_python.jail.cgroups import ControlGroup
from toolrl_plugin_python.jail.disk import remove_tree
from toolrl_plugin_python.jail.processes import Process, Trees, kilobytes, send
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, NONE, JobLimits, Settings
from toolrl_plugin_python.jail.usage import Usage, most_memory
from toolrl_plugin_python.jail.walls import MB, JobPlace

WATCH_SECONDS = 0.05
_MAX_MESSAGE = 1 << 18


@dataclass
class Cell:
    """One job, as the keeper sees it."""

    number: int
    place: JobPlace
    usage: Usage
    group: ControlGroup | None
    user: int | None
    founder: int
    note: int
    go: int | None
    first: int | None = None
    heard: bytes = b""
    error: str = ""
    reason: str = ""
    watched: bool = False
    program: Process | None = None

    def let_go(self, word: bytes = b"g") -> None:
        """Say go, as this process is the first's parent now; nothing said ends the first."""
        if self.go is not None:
            with suppress(OSError):
                os.write(self.go, word)
            os.close(self.go)
            self.go = None


class Keeper:
    """The loop."""

    def __init__(self, control: socket.socket, settings: Settings) -> None:
        self._control = control
        self._settings = settings
        self._base = _own_size()
        self._groups = cgroups.find() if settings.mode != NONE else []  # where control groups can be made
        cgroups.remove_stale(self._groups)
        self._left: list[ControlGroup] = []  # of jobs that have ended, with processes that are still ending
        self._cells: dict[int, Cell] = {}
        self._removing: dict[int, int | None] = {}
        """Processes that remove scratch folders, the last thing that this one waits for, with their users."""
        self._trees = Trees()
        self._next_watch = 0.0
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_message)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)
        self._open = True
        self._orders: dict[str, Callable[[Cell], None]] = {
            "watch": self._resume,
            "pause": self._pause,
            "end": self._end,
        }

    def run(self) -> None:
        """Until the run closes the socket."""
        self._tell(event="settled", groups=bool(self._groups))
        while self._open:
            timeout = None
            if any(it.watched for it in self._cells.values()):
                timeout = max(0.0, self._next_watch - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            if timeout is not None and time.monotonic() >= self._next_watch:
                self._watch()
        for it in list(self._cells.values()):
            self._end(it)
        while self._cells or self._removing:
            self._reap(*os.waitpid(-1, 0))

    def _on_wake(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._reap(*ended)
        self._left = [group for group in self._left if not group.remove()]

    def _on_message(self) -> None:
        try:
            raw, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 8)
        except BlockingIOError:
            return
        except OSError:
            raw, descriptors = b"", []
        if not raw:
            self._open = False
            return
        message = json.loads(raw)
        if message["op"] == "start":
            self._start(message, descriptors)
        elif message["id"] in self._cells:
            self._orders[message["op"]](self._cells[message["id"]])
        for descriptor in descriptors:
            os.close(descriptor)

    def _tell(self, **message: Any) -> None:
        # Blocking: the run reads whatever it does.
        with suppress(OSError):
            self._control.sendall(json.dumps(message).encode())

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        settings, limits = self._settings, JobLimits(**message["limits"])
        scratch = "/scratch"
        if settings.mode != NAMESPACES:
            scratch = tempfile.mkdtemp(prefix="toolrl-scratch-", dir=settings.scratch_base)
        group = self._group(message["id"], limits)
        run = notebook.run_interpreter if limits.interpreter else cell.run_program
        note, note_end = os.pipe2(os.O_CLOEXEC)
        go_end, go = os.pipe2(os.O_CLOEXEC)
        founder = namespaces.fork_founder(self._users())
        if founder == 0:
            signal.set_wakeup_fd(-1)
            cell.arrange([*descriptors[:3], go_end, note_end, *descriptors[3:]])
            cell.found(settings, limits, self._place(scratch, os.getpid()), run, group)
        os.close(note_end)
        os.close(go_end)
        os.set_blocking(note, False)
        place = self._place(scratch, founder)
        user = namespaces.own_user(founder) if settings.mode == NAMESPACES else place.user
        usage = Usage(limits, place, group, user)
        made = self._cells[message["id"]] = Cell(message["id"], place, usage, group, user, founder, note, go)
        self._selector.register(note, selectors.EVENT_READ, lambda: self._on_note(made))

    def _users(self) -> set[int]:
        """The users whose processes still run: the end of a job ends all of its user's."""
        users = [*(it.user for it in self._cells.values()), *self._removing.values()]
        return {user for user in users if user is not None}

    def _place(self, scratch: str, founder: int) -> JobPlace:
        user = namespaces.own_user(founder) if self._settings.own_user else None
        return replace(self._base, scratch=scratch, user=user)

    def _group(self, number: int, limits: JobLimits) -> ControlGroup | None:
        # Files in memory are the group's, too.
        files = limits.scratch_mb * MB if self._settings.mode == NAMESPACES else 0
        most = most_memory(limits, self._base)
        with suppress(OSError):
            return ControlGroup(self._groups, number, limits, most and most + files) if self._groups else None
        return None

    def _on_note(self, it: Cell) -> None:
        if it.number not in self._cells:
            return  # It ended in this very round, and its descriptor may be another's by now.
        with suppress(BlockingIOError):
            part = os.read(it.note, 4096)
            it.heard = (it.heard + part)[:8192]
            if not part:
                with suppress(KeyError):
                    self._selector.unregister(it.note)
        *lines, it.heard = it.heard.split(b"\n")
        for line in lines:
            if line.startswith(b"failed "):
                it.error = it.error or line[7:].decode(errors="replace")
            elif line.isdigit() and it.first is None:
                it.first = int(line)
                if it.first == it.founder:
                    it.let_go()

    def _reap(self, pid: int, status: int) -> None:
        it = next((it for it in self._cells.values() if pid in (it.founder, it.first)), None)
        if it is None:
            self._removing.pop(pid, None)
            return  # or an orphan of a job that has ended
        if it.first is None:
            self._on_note(it)
        if pid != it.first and it.first is not None and os.waitstatus_to_exitcode(status) == 0:
            it.let_go()
            return
        self._ended(it, status)

    def _ended(self, it: Cell, status: int) -> None:
        self._on_note(it)
        del self._cells[it.number]
        it.let_go(b"")
        with suppress(KeyError):
            self._selector.unregister(it.note)
        os.close(it.note)
        if it.place.user is not None:
            cell.signal_user(it.place.user, signal.SIGKILL)
        elif self._settings.mode not in (NAMESPACES, LANDLOCK):
            with suppress(OSError):
                os.killpg(it.founder, signal.SIGKILL)
        if self._settings.mode != NAMESPACES:
            self._removing[_remove_aside(it.place)] = it.place.user
        reason = it.reason
        if it.group is not None:
            reason = reason or ("memory" if it.group.was_full() else "")
            self._left += [] if it.group.remove() else [it.group]
        self._tell(event="ended", id=it.number, status=status, reason=reason, error=it.error)

    def _end(self, it: Cell) -> None:
        """Kill a job's first process; the rest goes with it."""
        it.watched = False
        if it.group is not None:
            it.group.let_go()
        # With Landlock alone nothing makes the rest go with it: it sees to that before it goes.
        number = signal.SIGTERM if self._settings.mode == LANDLOCK and it.first is not None else signal.SIGKILL
        with suppress(ProcessLookupError):
            os.kill(it.first if it.first is not None else it.founder, number)
        it.let_go(b"")

    def _watch(self) -> None:
        begin = time.process_time()
        disk = self._settings.mode == LANDLOCK
        watched = {it.first: it for it in self._cells.values() if it.watched and it.first is not None}
        for first, processes in self._trees.of(set(watched)).items():
            watched[first].reason = watched[first].usage.excess(processes, disk=disk)
            if watched[first].reason:
                for one in processes[1:]:  # On a busy machine its end takes a while.
                    send(one, signal.SIGSTOP)
                self._end(watched[first])
        # On a machine with very many processes a look takes long.
        cost = time.process_time() - begin
        self._next_watch = time.monotonic() + max(WATCH_SECONDS, 2 * cost)

    def _pause(self, it: Cell) -> None:
        """Stop an interpreter between its cells. It can't start other processes, nor be woken by its own timers."""
        it.watched = False
        assert it.first is not None
        processes = self._trees.of({it.first}).get(it.first, [])
        it.program = processes[1] if len(processes) > 1 else None
        if it.program is None or it.program.state in "ZX":
            self._end(it)  # It has ended, or its first thread has: there is nothing to go on with.
            return
        send(it.program, signal.SIGSTOP)
        it.usage.cpu.look(processes)
        it.usage.cpu.renew()
        self._tell(event="paused", id=it.number)

    def _resume(self, it: Cell) -> None:
        if it.program is not None:
            send(it.program, signal.SIGCONT)
        it.watched = True


def _remove_aside(place: JobPlace) -> int:
    """Remove a scratch folder in a process of its own, whose number is given: a program may have filled it with very
    many files."""
    child = os.fork()
    if child == 0:
        os.closerange(0, 65536)
        with suppress(BaseException):
            # The files with the rights of their owner, then the folder, which is this user's.
            for user in (place.user, None):
                with system.as_user(user):
                    remove_tree(Path(place.scratch))
        os._exit(0)
    return child


def _own_size() -> JobPlace:
    """What every fork begins with."""
    size = {name.decode(): 1024 * value for name, value in kilobytes("/proc/self/status").items()}
    mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
    return JobPlace("", None, size["VmData"], size["VmSize"], size["VmRSS"], mappings)


def main(descriptor: int) -> None:
    """Begin as the keeper: the socket to the run is this descriptor."""
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's, which ends this process
    # A look at a deep folder holds many open.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.umask(0o022)
    os.chdir("/")
    control = socket.socket(fileno=descriptor)
    fields: dict[str, Any] = json.loads(control.recv(_MAX_MESSAGE))
    fields |= {key: tuple(it) for key, it in fields.items() if isinstance(it, list)}
    settings = Settings(**fields)
    sys.path[:] = settings.search_path
    try:
        for name in settings.preload:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever a module raises is the answer
        control.send(json.dumps({"event": "unsettled", "error": f"{type(error).__name__}: {error}"[:2000]}).encode())
        return
    gc.collect()
    gc.freeze()
    Keeper(control, settings).run()
