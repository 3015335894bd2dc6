"""Tracebacks that begin at the author's code: a tool's, a reward's, a plugin's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from traceback import StackSummary, TracebackException

_TOOLRL = f"{Path(__file__).parent}{os.sep}"
_LIBRARY = (f"{Path(os.__file__).parent}{os.sep}", "<frozen ")
"""The standard library, which may hold the folders of installed packages."""
_FRAME = re.compile(r'^[ \t]*File "[^"\n]+", line [0-9]', re.MULTILINE)


def message_of(error: object) -> str:
    """An exception's message. Of one that holds a traceback, as Ray's do, it is the last line."""
    text = str(error)
    return text.rstrip().rpartition("\n")[2] if _FRAME.search(text) else text


def from_author(stack: StackSummary) -> StackSummary:
    """The stack from its first frame that is neither toolrl's nor the standard library's; whole where it has none."""
    for place, frame in enumerate(stack):
        name = frame.filename
        if not name.startswith(_TOOLRL) and ("-packages" in name or not name.startswith(_LIBRARY)):
            return StackSummary.from_list(stack[place:])
    return stack


def format_error(error: BaseException) -> str:
    """The traceback of an exception and of its causes, each from the author's first frame."""
    whole = TracebackException.from_exception(error)
    parts: list[TracebackException | None] = [whole]
    for part in parts:
        if part is not None:
            part.stack = from_author(part.stack)
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(whole.format())
