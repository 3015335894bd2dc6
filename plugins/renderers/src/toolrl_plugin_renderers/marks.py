"""Where a family's marks stand in a turn, and what that makes of its text: thinking, content, calls that were not read.

A mark that is a token of the vocabulary is found by its id, so a text that merely spells it is none; a mark that isn't
is found in the text. All of it is linear in the turn's length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

from toolrl.parsing import MAX_ITEMS
from toolrl.types import Decoded, Span
from toolrl_plugin_chat.control import alternatives
from toolrl_plugin_renderers.families import Family

Kind = Literal["think", "unthink", "open", "begin", "close", "section", "unsection"]


class Mark(NamedTuple):
    """One mark in a turn's text."""

    kind: Kind
    start: int
    end: int


class Marks:
    """Finds the marks of one family with one tokenizer's vocabulary (`added`: text to id of its added tokens)."""

    def __init__(self, family: Family, added: dict[str, int]) -> None:
        named: list[tuple[Kind, str]] = [("think", family.think[0]), ("unthink", family.think[1])]
        named += [("open", mark) for mark in family.opens] + [("close", mark) for mark in family.closes]
        named += [("section", family.sections[0]), ("unsection", family.sections[1])]
        self._kinds: dict[str, Kind] = {text: kind for kind, text in named if text}
        self._tokens: dict[int, Kind] = {added[text]: kind for text, kind in self._kinds.items() if text in added}
        spelled = [text for text in self._kinds if text not in added]
        self._spelled = re.compile(alternatives(spelled)) if spelled else None
        self._begins = re.compile(family.begins) if family.begins else None
        self._bodies = re.compile(family.bodies, re.DOTALL) if family.bodies else None
        self._one = re.compile(family.one, re.DOTALL) if family.one else None

    def find(self, ids: Sequence[int], decoded: Decoded) -> list[Mark]:
        """All marks, by where they start."""
        text, offsets = decoded.text, decoded.offsets
        found = [
            Mark(self._tokens[token], offsets[index], offsets[index + 1])
            for index, token in enumerate(ids)
            if token in self._tokens
        ]
        if self._spelled is not None:
            found += [Mark(self._kinds[match.group()], *match.span()) for match in self._spelled.finditer(text)]
        if self._begins is not None:
            found += [Mark("begin", *match.span()) for match in self._begins.finditer(text)]
        return sorted(found, key=itemgetter(1, 2))

    def bodies(self, text: str) -> list[Span] | None:
        """The pieces of content of a turn made of segments; None for families whose turns aren't."""
        return None if self._bodies is None else [match.span(1) for match in self._bodies.finditer(text)]

    def own(self, text: str, spans: Sequence[Span]) -> list[Span]:
        """The spans of calls that the library gave their section's, each with its own."""
        if self._one is None:
            return list(spans)
        own = {span: [match.span() for match in self._one.finditer(text, *span)] for span in set(spans)}
        result: list[Span] = []
        for span in spans:
            inside = own.get(span) or []
            result.append(inside.pop(0) if inside else span)
        return result


class Spans:
    """A set of spans that share no character."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans)
        self._starts = [start for start, _ in self._spans]

    def hold(self, position: int) -> bool:
        """Whether a character lies in one of them."""
        index = bisect_right(self._starts, position) - 1
        return index >= 0 and position < self._spans[index][1]

    def next_start(self, position: int, default: int) -> int:
        """Where the first one behind `position` starts."""
        index = bisect_right(self._starts, position)
        return self._starts[index] if index < len(self._starts) else default


def thinking(text: str, marks: Sequence[Mark], items: Sequence[Span], family: Family, *, inside: bool) -> list[Span]:
    """The thinking blocks of a turn, their marks included. `inside` says that the prompt opened the first one."""
    if not family.think[0]:
        return []
    if family.rethinks:
        return _every_block(text, marks, items, inside)
    opened = next((mark for mark in marks if mark.kind == "think"), None)
    explicit = opened is not None and not text[: opened.start].strip()
    if not (inside or explicit):
        return []
    closing = next((mark.end for mark in marks if mark.kind == "unthink"), None)
    if closing is None:
        # A call ends thinking that nothing closes, where the library read one.
        closing = min((start for start, _ in items), default=len(text))
    return [(0, closing)] if closing else []


def _every_block(text: str, marks: Sequence[Mark], items: Sequence[Span], inside: bool) -> list[Span]:
    """Blocks that may begin again; a call ends one."""
    calls, blocks = Spans(items), []
    start = 0 if inside else None
    events: list[tuple[int, int, Kind]] = [
        (mark.start, mark.end, mark.kind) for mark in marks if mark.kind in ("think", "unthink")
    ]
    events += [(first, first, "open") for first, _ in items]
    for position, end, kind in sorted(events):
        if kind == "think" and start is None and not calls.hold(position):
            start = position
        elif kind != "think" and start is not None:
            if end > start and (kind == "open" or not calls.hold(position)):
                blocks.append((start, end))
            start = None
    if start is not None and start < len(text):
        blocks.append((start, len(text)))
    return blocks


def unread(text: str, marks: Sequence[Mark], taken: Sequence[Span], family: Family) -> list[tuple[str, Span]]:
    """Calls that the library passed over without a word, as kinds of errors with their spans. `taken` are the items
    that it read, and thinking."""
    spans = Spans(taken)
    found: list[tuple[str, Span]] = []
    free = [mark for mark in marks if not spans.hold(mark.start)]
    openings = [mark.start for mark in free if mark.kind in ("open", "begin")]
    done = 0
    for index, mark in enumerate(free):
        if len(found) > MAX_ITEMS:
            break
        if mark.start < done:
            continue
        if mark.kind == "close":
            found.append(("stray_close", (mark.start, mark.end)))
            done = mark.end
        elif mark.kind in ("open", "begin"):
            place = bisect_right(openings, mark.start)
            limit = spans.next_start(mark.start, len(text))
            limit = min(limit, openings[place]) if place < len(openings) else limit
            close = _close_before(limit, free, index + 1)
            done = limit if close is None else close.end
            body = text[mark.end : limit if close is None else close.start].strip()
            if mark.kind == "begin" or not family.closes:
                kind = "malformed"
            else:
                kind = "unclosed" if close is None else "malformed" if body else "empty"
            found.append((kind, (mark.start, done)))
    lost = Spans([span for _, span in found])
    sections = [mark for mark in free if mark.kind in ("section", "unsection") and not lost.hold(mark.start)]
    return found + _empty_sections(text, sections, [*taken, *(span for _, span in found)])


def _close_before(limit: int, marks: Sequence[Mark], index: int) -> Mark | None:
    while index < len(marks) and marks[index].start < limit:
        if marks[index].kind == "close":
            return marks[index]
        index += 1
    return None


def _empty_sections(text: str, sections: Sequence[Mark], items: Sequence[Span]) -> list[tuple[str, Span]]:
    """Sections for calls in which no call begins."""
    starts = sorted(start for start, _ in items)
    found: list[tuple[str, Span]] = []
    for index, mark in enumerate(sections):
        if mark.kind != "section" or len(found) > MAX_ITEMS:
            continue
        after = sections[index + 1] if index + 1 < len(sections) else None
        limit = after.start if after is not None else len(text)
        place = bisect_right(starts, mark.start)
        if place < len(starts) and starts[place] < limit:
            continue
        closed = after is not None and after.kind == "unsection"
        body = text[mark.end : limit].strip()
        end = after.end if after is not None and closed else limit
        found.append(("unclosed" if not closed else "malformed" if body else "empty", (mark.start, end)))
    return found


def content(text: str, taken: Iterable[Span], within: Sequence[Span] | None = None) -> tuple[Span, ...]:
    """What is left of a turn, or of the pieces `within` it: white space at its ends and pieces of nothing else are left
    out."""
    spans = sorted(taken)
    pieces = [
        piece
        for whole in ([(0, len(text))] if within is None else within)
        for piece in _left(whole, spans)
        if text[slice(*piece)].strip()
    ]
    if not pieces:
        return ()
    start, end = pieces[0]
    pieces[0] = (end - len(text[start:end].lstrip()), end)
    start, end = pieces[-1]
    pieces[-1] = (start, start + len(text[start:end].rstrip()))
    return tuple(pieces)


def _left(whole: Span, taken: Sequence[Span]) -> Iterator[Span]:
    """`whole` without the spans `taken`, which are sorted."""
    position, end = whole
    index = max(bisect_right(taken, (position, position)) - 1, 0)
    while index < len(taken) and taken[index][0] < end:
        start, stop = taken[index]
        if position < start:
            yield position, start
        position = max(position, stop)
        index += 1
    if position < end:
        yield position, end
