"""Stands between a run and a process that it starts, so that nothing of the process outlives the run.

    python -I -S process_guard.py PID COMMAND [ARGUMENT …]

The guard starts the command, which inherits stdin, stdout and stderr, and waits. `npx` and `uvx` start children of
their own; on Linux they become children of the guard when their parent dies, so it can kill every one. It does so
when the command ends, when it gets SIGTERM, and within `LOOK_SECONDS` after the process PID, which has to be its
parent, died, SIGKILL included. They get SIGTERM, and SIGKILL after `TERM_SECONDS`.

When the guard ends, nothing of the command is left. Its exit status is that of the command, 128 + N after signal N, and
127 where the command can't be run: stderr then says why. On Linux the death of the guard itself kills the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TERM_SECONDS = 1.0
"""Between SIGTERM and SIGKILL."""
LOOK_SECONDS = 0.5
"""How often the guard looks whether its parent still lives."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOOK = (signal.SIGCHLD, signal.SIGALRM)


def main(parent: int, command: list[str]) -> int:
    """Run the command until it ends, or the guard has to. Returns the exit status of the guard."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, *_LOOK))
    try:
        child = subprocess.Popen(command, process_group=0, preexec_fn=_become_command)
    except OSError as error:
        print(f"can't be run: {error.strerror or error}", file=sys.stderr)
        return 127
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # Each of the command's pipes ends with the command alone.
        os.dup2(null, number)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
    status = _reap(child.pid)
    while status is None and os.getppid() == parent and signal.sigwait((*_STOP, *_LOOK)) not in _STOP:
        status = _reap(child.pid)
    _kill_all(child.pid)
    return 0 if status is None else status if status >= 0 else 128 - status


def _become_command() -> None:
    """In the new process, before it is the command: dies with the guard, and blocks no signal."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reap(child: int) -> int | None:
    """Reap every process that ended; the command's status where it is among them, negative for a signal."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _kill_all(group: int) -> None:
    """End every process that comes from the command, and wait for the last."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + TERM_SECONDS
        told: set[int] = set()
        while time.monotonic() < end:
            # A process that ends hands its children to the guard: they are the next.
            for pid in {-group, *_children()} - told:
                told.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            time.sleep(0.005)


def _children() -> set[int]:
    """The guard's own children, adopted ones included; none where there is no /proc."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            # `pid (name) state ppid …`; the name may hold anything, a parenthesis too.
            if int(file.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.add(int(file.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
