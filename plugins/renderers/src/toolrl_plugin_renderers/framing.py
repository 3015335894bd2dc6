"""Which tokens of a turn the library gets to see, so that it can't read one call with the next one's arguments.

The library ends a call at the first closing mark. If a call lost its own, another call's opening mark lies between the
two, and both are read as one. Such a piece is found after a first reading; all of it before its last opening mark is
kept from a second one. What the library then passes over is an error (`marks.unread`), and what follows is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from toolrl.types import Decoded, Span
from toolrl_plugin_renderers.families import Family
from toolrl_plugin_renderers.marks import Kind, Mark, covered, inside


def hidden(
    attempts: Sequence[tuple[Any, Span]],
    thought: Sequence[Span],
    marks: Sequence[Mark],
    text: str,
    family: Family,
    boundary: Kind | None,
    whole: Callable[[Any, Span], bool],
) -> list[Span]:
    """The pieces that the library must not see; most turns have none. `boundary` is the kind of mark that an attempt
    begins with, None if it isn't a token; `whole` says of an attempt whether it can be read as one call."""
    found = []
    for attempt, span in attempts:
        within = inside(marks, span, after=True)
        bounds = [mark for mark in within if mark.kind == boundary]
        before = takewhile(lambda mark: mark.kind != "head", within) if family.head else ()
        crossed = any(mark.kind in (boundary, "close", "unthink") for mark in before)
        # An opening mark in a value of a whole call is text.
        if crossed or (bounds and not whole(attempt, span)):
            found.append((span[0], bounds[-1].start if bounds else span[1]))
    if family.one_section:
        found += _between_sections(text, marks, [*thought, *(span for _, span in attempts)])
    return found


def _between_sections(text: str, marks: Sequence[Mark], taken: Sequence[Span]) -> list[Span]:
    """From where one section ends to where the next one has begun, for all but the last."""
    mask = covered(text, taken)
    sections = [mark for mark in marks if mark.kind in ("section", "unsection") and not mask[mark.start]]
    found = []
    opened, closed = False, None
    for mark in sections:
        if mark.kind == "unsection":
            closed = closed or (mark if opened else None)
            continue
        opened = True
        if closed is not None:
            found.append((closed.start, mark.end))
            closed = None
    return found


def shown(decoded: Decoded, pieces: Sequence[Span]) -> list[int]:
    """The places of the tokens outside of `pieces`."""
    drop = bytearray(len(decoded.offsets))
    for start, end in pieces:
        first, last = bisect_left(decoded.offsets, start), bisect_left(decoded.offsets, end)
        drop[first:last] = b"\1" * (last - first)
    return [place for place in range(len(decoded.offsets) - 1) if not drop[place]]
