"""Code fences: what a run of backticks or tildes opens, and where the fence ends.

A run at the start of a line opens a fence, unless a second run on the line makes inline code of it. In the middle of a
line it opens one if the line ends after at most one word. The rules are CommonMark's, with two more for models: a line
that opens a call ends a fence of the same character that was forgotten to be closed, and in a call's fence a line with
the word `output` does, behind which the model invents a result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from toolrl_plugin_tir.syntax import (
    CALL_INFO,
    CALL_WORD,
    LINE_OR_RUN,
    MIDLINE_CALL_INFO,
    MIDLINE_INFO,
    fence_line,
    width,
)

_MARKERS = re.compile(r"[ \t]*+(?:(?:[-*+>]|\d{1,9}[.)])[ \t]*+)++")
"""What may stand before a fence that belongs to a list or a quotation."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence whose opening line is known."""

    start: int
    char: str
    length: int
    indent: int
    """Columns before its run."""
    kind: Literal["call", "misplaced", "other"]
    """`misplaced`: a call with code on its opening line."""
    body: int
    """Where the line after the opening one begins."""


class Inline(NamedTuple):
    """A run behind which nothing stays open: the text up to `end` is content, or a call in one line."""

    end: int
    call: bool = False
    blank: bool = False
    """A call without code."""


class Undecided(NamedTuple):
    """Only more text can tell. `opens`: the run opens a fence, if no second one on its line makes inline code of it."""

    opens: bool


class FenceEnd(NamedTuple):
    """Where a fence ends."""

    body: int
    """Where its last line ends."""
    end: int
    """Where reading goes on."""
    closed: bool


def read_opening(text: str, start: int, tag: str, final: bool) -> Fence | Inline | Undecided:
    """What the run `tag`, white space before it included, opens."""
    char, after = tag[-1], start + len(tag)
    at_line = start == 0 or text[start - 1] == "\n"
    found = LINE_OR_RUN[char].search(text, after)
    if not final and (found is None or (found.end() == len(text) and found.group() != "\n")):
        return Undecided(at_line and found is None)
    if found is not None and found.group() != "\n":
        word = CALL_WORD.match(text, after, found.start()) if at_line else None
        return Inline(found.end(), word is not None, word is not None and not text[word.end() : found.start()].strip())
    line_end = found.start() if found is not None else len(text)
    if at_line:
        kind: Literal["call", "misplaced", "other"] = "other"
        if CALL_WORD.match(text, after, line_end):
            kind = "call" if CALL_INFO.fullmatch(text, after, line_end) else "misplaced"
        indent = tag.rstrip(char)
    else:
        if MIDLINE_CALL_INFO.fullmatch(text, after, line_end):
            kind = "call"
        elif MIDLINE_INFO.fullmatch(text, after, line_end):
            kind = "other"
        else:
            return Inline(after)
        indent = _midline_indent(text[text.rfind("\n", 0, start) + 1 : start])
    body = min(line_end + 1, len(text))
    return Fence(start, char, len(tag.lstrip(" \t")), width(indent), kind, body)


def _midline_indent(before: str) -> str:
    """The white space that a fence's column stands for; `before` is what precedes it on its line."""
    if _MARKERS.fullmatch(before):
        return " " * len(before.expandtabs(4))
    return before[: len(before) - len(before.lstrip(" \t"))]


def find_end(text: str, fence: Fence, final: bool) -> FenceEnd | None:
    """The line that ends the fence. None where none is there, or where only more text can tell."""
    pattern = fence_line(fence.char, fence.length)
    at = fence.body
    while (line := pattern.search(text, at)) is not None:
        at = line.end()
        if at == len(text) and not final:
            break
        if width(line["indent"]) > fence.indent + 3:
            continue
        info = line["info"].strip(" \t\r")
        if not info:
            return FenceEnd(line.start(), line.end("run"), True)
        if info.lower() == "output" and fence.kind != "other":
            return FenceEnd(line.start(), line.start(), True)
        if CALL_INFO.fullmatch(info):
            return FenceEnd(line.start(), line.start(), False)
    return None


def closing_runs(text: str, fence: Fence) -> tuple[str, ...]:
    """What may come next and close the fence: a run as long as its own, or what a run at the text's end lacks of it.
    That happens where generation stopped on three characters of a longer run."""
    begun = len(text) - len(text.rstrip(fence.char))
    run = fence.char * fence.length
    return (run, run[begun:]) if 0 < begun < fence.length and len(text) - begun >= fence.body else (run,)


def stopped_at(text: str, fence: Fence, stopped_by: str | None) -> int | None:
    """At the end of a text: where the fence's code ends if generation stopped on its closing run, which was cut off.
    None where it didn't."""
    run = fence.char * fence.length
    if stopped_by is None or not stopped_by.startswith(run) or stopped_by.strip(fence.char):
        return None
    last = text.rfind("\n") + 1
    blank = not text[last:].strip(" \t") and width(text[last:]) <= fence.indent + 3
    held = text.rstrip().endswith(run)
    return last if last >= fence.body > 0 and text[fence.body - 1] == "\n" and blank and not held else None
