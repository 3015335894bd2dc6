"""What an attack is.

Its code is a text with the marks of `Targets` in it, run as one call of the tool `python`. It wins where it prints the
word `WON` (which only the code of the attack can print, after its last step went through), or where something outside
has changed, which `World.damage` finds. `BOUND` in a code is a number: without isolation it keeps a bomb small.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PAUSE_SECONDS = 1.0
CLASSES = (
    "reading files",
    "writing files",
    "network",
    "processes and signals",
    "memory and CPU",
    "descriptors and disk",
    "ptrace and /proc",
    "symlinks and mounts",
    "endless output",
    "outliving the call",
    "ctypes and raw calls",
)


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    kind: str
    """One of CLASSES."""
    code: str
    stopped_by: str
    """Which mechanism stops it, the outermost first."""
    bound: int = 0
    """What `BOUND` is where nothing holds the attack."""
    follow_up: str = ""
    """Code of the next call, which wins instead of the first."""
    persistent: bool = False
    """Both calls have one interpreter, which is to stand still between them for `PAUSE_SECONDS`."""
    long: bool = False
    """It ends by a limit of time, so it runs beside others."""
    output: bool = False
    """It wins by more text than is allowed."""
    lingers: bool = False
    """It wins by a process named `MARK` that is there after the call."""
    hides: bool = False
    """It hides what it uses."""


ATTACKS: list[Attack] = []
MMAP = """\
libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]"""
"""For code that is eight blanks deep."""


def inside(code: str, depth: int) -> str:
    """Code for a place that is so many blanks deep."""
    return textwrap.indent(textwrap.dedent(code).strip(), " " * depth).strip()


def attacks(kind: str, stopped_by: str, **more: Any) -> Callable[..., None]:
    """Adds attacks of one kind: each keyword of the second call is a name, its value the code. `more` are other fields
    of `Attack`."""
    assert kind in CLASSES

    def add(**codes: str) -> None:
        for name, code in codes.items():
            ATTACKS.append(Attack(name, kind, textwrap.dedent(code).strip(), stopped_by, **more))

    return add
