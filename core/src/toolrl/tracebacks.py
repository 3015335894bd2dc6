"""Tracebacks that begin at the author's code: a tool's, a reward's, a plugin's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb

_TOOLRL = f"{Path(__file__).parent}{os.sep}"
_LIBRARY = (f"{Path(os.__file__).parent}{os.sep}", "<frozen ")
"""The standard library, which may hold the folders of installed packages."""

_PLUGIN = re.compile("toolrl_(plugin_|common$|testing$)").match


def from_author(stack: StackSummary) -> StackSummary:
    """The stack from its first frame that is neither toolrl's nor the standard library's; whole where it has none."""
    for place, frame in enumerate(stack):
        name = frame.filename
        if not name.startswith(_TOOLRL) and ("-packages" in name or not name.startswith(_LIBRARY)):
            return StackSummary.from_list(stack[place:])
    return stack


def author_place(error: BaseException) -> str | None:
    """The file and line of the author's own code where an exception was raised, such as `rewards.py:12`: the innermost
    frame outside of libraries and of toolrl, before one of a plugin. None if there is no such frame."""
    places: list[FrameSummary] = []
    part: BaseException | None = error
    while part is not None:
        for frame in reversed(extract_tb(part.__traceback__)):
            name = frame.filename
            if not name.startswith((_TOOLRL, *_LIBRARY)) and "-packages" not in name:
                places.append(frame)
        part = part.__cause__ or part.__context__
    if not places:
        return None
    found = next((it for it in places if not any(map(_PLUGIN, Path(it.filename).parts))), places[0])
    path = Path(found.filename)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{found.lineno}"


def format_error(error: BaseException) -> str:
    """The traceback of an exception and of its causes, each from the author's first frame."""
    whole = TracebackException.from_exception(error)
    parts: list[TracebackException | None] = [whole]
    for part in parts:
        if part is not None:
            part.stack = from_author(part.stack)
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(whole.format())
