"""Whether the walls hold here: tried from inside, with what they promise.

The keeper's run hands over paths that must not be reachable and a process that must not be signalled. What is found
wrong goes back as a list; an empty one is the pass.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from toolrl_plugin_python.jail import cell, namespaces
from toolrl_plugin_python.jail.settings import NAMESPACES, JobLimits, Settings
from toolrl_plugin_python.jail.walls import JobPlace


def run_probe(settings: Settings, limits: JobLimits, place: JobPlace) -> int:
    """What the first does."""
    raw = json.loads(os.pread(cell.JOB, 1 << 16, 0))

    def look() -> None:
        started = _started(limits.processes + 8)
        processes = started > 0
        wrong = list(_wrong(raw, settings, place))
        if started > limits.processes:
            wrong.append("more processes can be started than are allowed")
        answer = {"wrong": wrong, "processes": processes, "own_users": os.getuid() == namespaces.INSIDE_ID}
        os.write(cell.CHANNEL, json.dumps(answer).encode()[:60_000] + b"\n")

    cell.wait_for(cell.inside(settings, limits, place, look))
    cell.end_others(settings, place)
    return 0


def _wrong(raw: dict[str, str], settings: Settings, place: JobPlace) -> Iterator[str]:
    secret = Path(raw["secret"])
    if not _fails(lambda: os.close(os.open(secret, os.O_RDONLY))):
        yield "a file outside can be read"
    if not _fails(lambda: os.close(os.open(secret, os.O_WRONLY))):
        yield "a file outside can be written"
    if not _fails(lambda: (secret.parent / "new").write_text("x")):
        yield "a file can be made outside"
    if not _fails(lambda: secret.chmod(0o600)):
        yield "a file outside can be changed"
    if not _fails(lambda: socket.socket().close()):
        yield "a socket can be made"
    apart = settings.mode == NAMESPACES and os.getppid() == 1  # the same numbers stand for others here
    if not apart and not _fails(lambda: os.kill(int(raw["victim"]), 0)):
        yield "a process outside can be signalled"
    if not _fails(lambda: os.close(os.open(f"/proc/{raw['victim']}/environ", os.O_RDONLY))):
        yield "the environment of a process outside can be read"
    try:
        Path(place.scratch, "probe").write_text("x")
        if raw["module"]:
            importlib.import_module(raw["module"])
    except (OSError, ImportError) as error:
        yield f"the scratch folder or the interpreter can't be used: {error}"
    # Last: where it is allowed, the next signal stops this process.
    if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0:
        yield "ptrace is allowed"


def _fails(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


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
