"""Tracebacks that begin at the author's code: a tool's, a reward's, a plugin's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb

_TOOLRL = f"{Path(__file__).parent}{os.sep}"
_LIBRARY = (f"{Path(os.__file__).parent}{os.sep}", "<frozen ")
"""The standard library, which may hold the folders of installed packages."""
_PLUGIN = re.compile(r"[/\\]toolrl_(common|testing|plugin_\w+)[/\\]")
_FRAME = re.compile(r'^[ \t]*File "[^"\n]+", line [0-9]', re.MULTILINE)


def message_of(error: object) -> str:
    """An exception's message. Of one that holds a traceback, as Ray's do, it is the last line."""
    text = str(error)
    return text.rstrip().rpartition("\n")[2] if _FRAME.search(text) else text


def from_author(stack: StackSummary) -> StackSummary:
    """The stack from its first frame that is neither toolrl's nor the standard library's; whole where it has none.
    A plugin's frames above a file of the user's count as toolrl's."""
    place = _authors(stack)
    return stack if place is None else StackSummary.from_list(stack[place:])


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
    found = next((it for it in places if not _PLUGIN.search(it.filename)), places[0])
    path = Path(found.filename)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{found.lineno}"


def format_error(error: BaseException) -> str:
    """The traceback of an exception and of its causes, each from the author's first frame. An exception of toolrl's
    that has a cause is its message alone."""
    whole = TracebackException.from_exception(error)
    parts: list[TracebackException | None] = [whole]
    for part in parts:
        if part is not None:
            context = None if part.__suppress_context__ else part.__context__
            if _authors(part.stack) is None and (part.__cause__ or context):
                part.stack = None  # type: ignore[assignment]  # `format` leaves it out then.
            else:
                part.stack = from_author(part.stack)
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(whole.format())


def _authors(stack: StackSummary) -> int | None:
    """The place of the author's first frame: of a file of the user's if there is one, else of a package's."""
    outside = [
        (place, frame.filename)
        for place, frame in enumerate(stack)
        if not frame.filename.startswith(_TOOLRL)
        and ("-packages" in frame.filename or not frame.filename.startswith(_LIBRARY))
    ]
    users = [place for place, name in outside if "-packages" not in name and not _PLUGIN.search(name)]
    return next(iter([*users, *(place for place, _ in outside)]), None)
