"""Stands between a run and the process of one MCP server, so that nothing of the server outlives the run.

    python -I -S guard.py CONTROL COMMAND [ARGUMENT …]

The guard starts the command, which inherits stdin, stdout and stderr, and waits. `npx` and `uvx` start children of
their own; on Linux they become children of the guard when their parent dies, so it can kill every one. It does so
when the command ends, when the other end of the socket CONTROL (a file descriptor) is closed, and when the process that
started it dies, SIGKILL included. They get SIGTERM, and SIGKILL after `TERM_SECONDS`.

It reports on CONTROL, in one line, how the command ended (`exit N`, `signal N`) or why it can't be run (`error TEXT`).
The end of CONTROL says that nothing of the server is left. On Linux the death of the guard itself kills the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TERM_SECONDS = 1.0
"""Between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main(control: int, command: list[str]) -> int:
    """Run the command until it ends or the other end of `control` closes. Returns its exit status."""
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, process_group=0, preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    except OSError as error:
        _report(control, f"error {error.strerror or error}")
        return 127
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, signal.SIGCHLD))  # after the command, which would inherit it
    _prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # Each of the server's pipes ends with the server alone.
        os.dup2(null, number)
    threading.Thread(target=_wait_for_close, args=(control,), daemon=True).start()
    status = _reap(child.pid)
    while status is None and os.getppid() == parent and signal.sigwait((*_STOP, signal.SIGCHLD)) not in _STOP:
        status = _reap(child.pid)
    if status is not None:
        _report(control, f"signal {-status}" if status < 0 else f"exit {status}")
    _kill_all(child.pid)
    return 0 if status is None else status if status >= 0 else 128 - status


def _wait_for_close(control: int) -> None:
    """Nothing is ever sent to a guard: what ends the read is that the other end was closed."""
    with contextlib.suppress(OSError):
        os.read(control, 1)
    os.kill(os.getpid(), signal.SIGTERM)


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


def _report(control: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(control, f"{line}\n".encode())


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
