"""Whether the walls hold here: a cell of an isolated interpreter tries what they promise to refuse.

`detection` runs the text of this file and then `look`. It imports nothing that the keeper hasn't imported already.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path


def look(secret: str, victim: int, module: str, processes: int, *, own_numbers: bool) -> None:
    """Print what was found. `secret` and `victim` are a file and a process outside, `module` is one that has to be
    importable, or empty; so many `processes` may be started. `own_numbers`: in a process namespace."""
    started = _started(processes + 8)
    wrong = list(_wrong(Path(secret), victim, module, own_numbers=own_numbers and os.getppid() == 1))
    if started > processes:
        wrong.append("more processes can be started than are allowed")
    print(json.dumps(wrong))


def _wrong(secret: Path, victim: int, module: str, *, own_numbers: bool) -> Iterator[str]:
    outside: dict[str, Callable[[], object]] = {
        "a file outside can be read": lambda: os.close(os.open(secret, os.O_RDONLY)),
        "a file outside can be written": lambda: os.close(os.open(secret, os.O_WRONLY)),
        "a file can be made outside": lambda: (secret.parent / "new").write_text("x"),
        "a file outside can be changed": lambda: secret.chmod(0o600),
        "a socket can be made": lambda: socket.socket().close(),
        "a process outside can be signalled": lambda: os.kill(victim, 0),
        "the environment of a process outside can be read": lambda: os.close(
            os.open(f"/proc/{victim}/environ", os.O_RDONLY)
        ),
    }
    if own_numbers:  # the same number stands for another process here
        del outside["a process outside can be signalled"]
    for what, action in outside.items():
        try:
            action()
        except OSError:
            continue
        yield what
    try:
        Path("probe").write_text("x")
        if module:
            importlib.import_module(module)
    except (OSError, ImportError) as error:
        yield f"the scratch folder or the interpreter can't be used: {error}"
    # Last: where it is allowed, the next signal stops this process.
    if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0:
        yield "ptrace is allowed"


def _started(wanted: int) -> int:
    """How many processes could be started at once, of so many."""
    read, write = os.pipe()
    children = []
    try:
        for _ in range(wanted):
            child = os.fork()
            if child == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    os.close(write)
    os.close(read)
    for child in children:
        os.waitpid(child, 0)
    return len(children)
