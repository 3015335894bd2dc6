"""The processes of one job, each forked from the one before:

    keeper → founder → first → program

The founder makes the namespaces and forks the first, which is process 1 in them; without namespaces it is the first
itself. The first starts the program inside the walls and waits for it, ends whatever the program left running, and
hands files back. When the first dies, the kernel ends everything in its namespace. None of these functions returns:
they are what a forked process does until it exits.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from toolrl_plugin_python.jail import namespaces, system, walls
from toolrl_plugin_python.jail.cgroups import ControlGroup
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, NONE, JobLimits, Settings
from toolrl_plugin_python.jail.walls import JobPlace

GO, NOTE = 3, 4
"""Descriptors of the first: from the keeper, and to it."""
CHANNEL = 5
"""An interpreter's channel to the run; for a program, where the first answers."""
JOB = 6
"""A program's job file."""
FAILED = 70
"""Exit status where the walls couldn't be put up."""

_programs: list[int] = []
"""Of the first: its children, as long as they haven't been waited for."""
Program = Callable[[], None]


def close_others(kept: int) -> None:
    """Close every descriptor from `kept` on. A keeper has few."""
    os.closerange(kept, 65536)


def arrange(descriptors: list[int]) -> None:
    """Make these the descriptors 0, 1, 2 … in this order, and close all others."""
    # Copies above all places first, so that none of them is written over before it is moved.
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64) for number in descriptors]
    for place, number in enumerate(high):
        os.dup2(number, place, inheritable=place <= 2)
    close_others(len(descriptors))


def found(
    settings: Settings,
    limits: JobLimits,
    place: JobPlace,
    run: Callable[[Settings, JobLimits, JobPlace], int],
    group: ControlGroup | None,
) -> NoReturn:
    """What the founder does. `run` is what the first does; its value is the first's exit status."""
    try:
        if group is not None:
            group.enter()
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        if settings.mode == NAMESPACES:
            namespaces.enter(settings, limits.scratch_mb)
            first = os.fork()
            if first:
                os.write(NOTE, b"%d\n" % first)
                os._exit(0)
        else:
            if place.user is not None:
                os.chown(place.scratch, place.user, place.user)
            if settings.mode == LANDLOCK:
                # What a program forks twice is the first's child then, as in a process namespace.
                system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
            os.write(NOTE, b"%d\n" % os.getpid())
        _wait_for_go(settings, place)
        status = run(settings, limits, place)
    except BaseException as error:  # noqa: BLE001 - nothing is above this
        _note_failure(error)
        os._exit(FAILED)
    os._exit(status)


def _wait_for_go(settings: Settings, place: JobPlace) -> None:
    """Wait for the keeper to be this process's parent; from then on its death is this one's."""
    if not os.read(GO, 1):
        os._exit(FAILED)
    death = signal.SIGKILL
    if settings.mode == LANDLOCK:
        death = signal.SIGTERM
        signal.signal(death, lambda *_: _end_all(place.user))
    system.prctl(system.PR_SET_PDEATHSIG, death)
    # A keeper that died before the call above closed its end.
    os.write(NOTE, b"ready\n")


def _end_all(user: int | None) -> NoReturn:
    """End the program, then this process: what becomes another user forgets whose death is its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for child in _programs:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    for child in _programs:
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    if user is not None:
        signal_user(user, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(FAILED)


def _note_failure(error: BaseException) -> None:
    text = "".join(traceback.format_exception_only(error)).strip()
    with suppress(OSError):
        os.write(NOTE, b"failed " + text.encode(errors="replace")[:2000].replace(b"\n", b" ") + b"\n")


def inside(settings: Settings, limits: JobLimits, place: JobPlace, program: Program) -> int:
    """Fork a process that enters the walls and runs `program`; its id."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child:
        _programs.append(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if settings.mode != NAMESPACES:
            # Process 1's death ends a namespace; here the kernel has to be asked.
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        walls.enter(settings, limits, place)
        program()
    except BaseException as error:  # noqa: BLE001 - nothing is above this
        _note_failure(error)
        os._exit(FAILED)
    os._exit(0)


def wait_for(child: int) -> int:
    """Reap until this child has ended; its wait status. Orphans of the program are reaped on the way."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            _programs.remove(child)
            return status


def end_others(settings: Settings, place: JobPlace) -> None:
    """End all that the program left running, and wait for it: it is this process's children then."""
    if settings.mode == NAMESPACES:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    elif place.user is not None:
        signal_user(place.user, signal.SIGKILL)
    with suppress(ChildProcessError):
        while settings.mode != NONE:
            os.waitpid(-1, 0)


def signal_user(user: int, number: int) -> None:
    """Signal every process of a user that belongs to one job, none of which can hinder this; only root can."""
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            sender = namespaces.sender_to(user)
            os.setgroups([])
            os.setresgid(sender, sender, sender)
            # It may signal whom its effective user may, and be signalled by whom its real one may.
            os.setresuid(sender, user, sender)
            system.drop_capabilities()
            os.kill(-1, number)
        os._exit(0)
    os.waitpid(child, 0)


def run_program(settings: Settings, limits: JobLimits, place: JobPlace) -> int:
    """What the first does for a program: start it, wait, answer how it ended and the files that were asked for."""
    job, offset = _read_job()
    os.set_inheritable(CHANNEL, False)

    def program() -> None:
        os.close(CHANNEL)
        os.close(NOTE)
        os.close(GO)
        at = offset
        for name, size in job["files"]:
            _write_file(name, at, size)
            at += size
        close_others(3)
        temporary = "/tmp" if settings.mode == NAMESPACES else place.scratch
        environment = {"HOME": place.scratch, "TMPDIR": temporary, **job["env"]}
        os.execvpe(job["argv"][0], job["argv"], environment)

    _write(b"ready\n")
    begin = time.monotonic()
    status = wait_for(inside(settings, limits, place, lambda: _or_say_why(program)))
    seconds = time.monotonic() - begin
    end_others(settings, place)
    _answer({"status": status, "seconds": seconds})
    if job["fetch"]:
        wait_for(inside(settings, limits, place, lambda: _hand_back(job["fetch"], job["fetch_bytes"])))
    return 0


def _or_say_why(program: Program) -> None:
    """As a shell does: a program that can't be started is an exit status and a line on stderr."""
    try:
        program()
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"can't start: {error}\n".encode(errors="replace"))
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _read_job() -> tuple[dict[str, Any], int]:
    """The job, as `sandbox.job_file` writes it, and where the contents of its files begin."""
    with open(JOB, "rb", closefd=False) as file:
        file.seek(0)
        line = file.readline()
    return json.loads(line), len(line)


def _write_file(name: str, offset: int, size: int) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o755)
    _copy(target, JOB, offset, size)
    os.close(target)


def _hand_back(names: list[str], left: int) -> None:
    """Answer with the files that were asked for, of `left` bytes together at most: for each a line with its name and
    size, then its bytes."""
    for name in names:
        with suppress(OSError):
            handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            info = os.fstat(handle)
            if stat.S_ISREG(info.st_mode) and info.st_size <= left:
                left -= info.st_size
                _answer({"file": name, "size": info.st_size})
                _copy(CHANNEL, handle, 0, info.st_size)
            os.close(handle)


def _copy(target: int, source: int, offset: int, size: int) -> None:
    """Copy so many bytes of a file."""
    while size > 0:
        copied = os.sendfile(target, source, offset, size)
        if not copied:
            os._exit(FAILED)
        offset, size = offset + copied, size - copied


def _answer(header: dict[str, object]) -> None:
    _write(json.dumps(header).encode() + b"\n")


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(CHANNEL, view) :]
