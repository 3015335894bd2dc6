"""Where a family's marks stand in a turn, and what that makes of its text: thinking, content, calls that were not read.

A mark that is a token of the vocabulary is found by its id, so a text that merely spells it is none; a mark that isn't
is found in the text. All of it is linear in the turn's length.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from toolrl.parsing import MAX_ITEMS
from toolrl.types import Decoded, Span
from toolrl_plugin_chat.control import alternatives
from toolrl_plugin_renderers.families import Family, Pairs

_SHARED = 24
"""Characters of a mark that may stand in front of the token that its last one is in."""
_NAME_LENGTH = 100
_NAME_BEFORE = re.compile(r"[\w.:-]+\s*\Z")
_PARTS = ("head", "part")
"""Marks inside a call. Outside of one they show that its opening mark is missing."""
_START = attrgetter("start")
_FREE = re.compile(rb"\0+")
Kind = Literal["think", "unthink", "open", "begin", "close", "section", "unsection", "lead", "head", "part"]


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
        named += [("lead", family.lead), ("head", family.head)]
        if isinstance(family.arguments, Pairs):
            pairs = family.arguments
            named += [("part", mark) for mark in (*pairs.key, *pairs.value, pairs.separator)]
        self._kinds: dict[str, Kind] = {text: kind for kind, text in named if text}
        self._tokens: dict[int, Kind] = {added[text]: kind for text, kind in self._kinds.items() if text in added}
        spelled = [text for text in self._kinds if text not in added]
        self._spelled = re.compile(alternatives(spelled)) if spelled else None
        self._begins = re.compile(family.begins) if family.begins else None
        self._bodies = re.compile(family.bodies, re.DOTALL) if family.bodies else None
        first = family.lead or next(iter(family.opens), family.sections[0])
        self.boundary: Kind | None = self._kinds[first] if first in added else None
        """The kind of mark that an attempt of the library's begins with, if that is a token."""

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

    def snapped(self, marks: Sequence[Mark], span: Span) -> Span:
        """A span of the library's without the ends of tokens that its first and last mark, being texts, share with what
        stands around them."""
        if self.boundary is not None:
            return span
        own = inside(marks, (max(span[0] - _SHARED, 0), span[1]))
        own = [mark for mark in own if mark.end > span[0]]
        opened = next((mark.start for mark in own if mark.kind == "open"), span[0])
        closed = next((mark.end for mark in reversed(own) if mark.kind == "close"), span[1])
        return (opened, closed) if opened < closed else span

    def bodies(self, text: str) -> list[Span] | None:
        """The pieces of content of a turn made of segments; None for families whose turns aren't."""
        return None if self._bodies is None else [match.span(1) for match in self._bodies.finditer(text)]


def inside(marks: Sequence[Mark], span: Span, *, after: bool = False) -> Sequence[Mark]:
    """The marks that begin in `span`; `after`: not at its start."""
    first = bisect_left(marks, span[0] + after, key=_START)
    return marks[first : bisect_left(marks, span[1], first, key=_START)]


def covered(text: str, spans: Iterable[Span]) -> bytearray:
    """A byte for each character, and one for the end: 1 where a span holds it."""
    mask = bytearray(len(text) + 1)
    for start, end in spans:
        mask[start:end] = b"\1" * (end - start)
    return mask


def thinking(text: str, marks: Sequence[Mark], items: Sequence[Span], family: Family, *, inside: bool) -> list[Span]:
    """The thinking blocks of a turn, their marks included. `inside`: the prompt opened the first one."""
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
    calls, blocks = covered(text, items), []
    start = 0 if inside else None
    thoughts = [mark for mark in marks if mark.kind in ("think", "unthink") and not calls[mark.start]]
    events = [(mark.start, mark.end, mark.kind == "think") for mark in thoughts]
    events += [(first, first, False) for first in (*(first for first, _ in items), len(text))]
    for position, end, opens in sorted(events):
        if opens and start is None:
            start = position
        elif not opens and start is not None:
            if end > start:
                blocks.append((start, end))
            start = None
    return blocks


def unread(text: str, marks: Sequence[Mark], taken: Sequence[Span], family: Family) -> list[tuple[str, Span]]:
    """Calls that the library passed over without a word, as kinds of errors with their spans. `taken` are the items
    that it read, and thinking."""
    mask = covered(text, taken)
    free = [mark for mark in marks if not mask[mark.start]]
    found: list[tuple[str, Span]] = []
    opened: Mark | None = None
    # A call ends at the next mark of one, or where something begins that the library read.
    ends = [Mark("section", start, end) for start, end in taken if start < end] + [
        Mark("section", len(text), len(text))
    ]
    kinds = ("open", "begin", "close", *_PARTS) if family.one_section else ("open", "begin", "close", "part")
    calls = [mark for mark in free if mark.kind in kinds]
    for mark in sorted([*calls, *ends], key=itemgetter(1, 2)):
        if len(found) > MAX_ITEMS:
            break
        if opened is not None and opened.kind == "open" and mark.kind == "begin":
            continue  # a function within the marks around it
        if opened is not None and mark.kind in _PARTS:
            continue
        if opened is not None and mark.start > opened.start:
            end = mark.end if mark.kind == "close" else mark.start
            body = text[opened.end : mark.start].strip()
            if opened.kind != "open" or not family.closes:
                kind = "malformed"
            else:
                kind = "unclosed" if mark.kind != "close" else "malformed" if body else "empty"
            found.append((kind, (_begin(text, opened), end)))
            opened = mark if mark.kind in ("open", "begin") else None
        elif mark.kind == "close":
            found.append(("stray_close", (mark.start, mark.end)))
        elif opened is None and mark.kind != "section":
            opened = mark
    lost = covered(text, [span for _, span in found])
    sections = [mark for mark in free if mark.kind in ("section", "unsection") and not lost[mark.start]]
    return found + _empty_sections(text, sections, [*taken, *(span for _, span in found)])


def _begin(text: str, mark: Mark) -> int:
    """Where a call that begins with this mark begins: one without its opening mark with the name before that."""
    name = _NAME_BEFORE.search(text, max(mark.start - _NAME_LENGTH, 0), mark.start) if mark.kind in _PARTS else None
    return mark.start if name is None else name.start()


def _empty_sections(text: str, sections: Sequence[Mark], items: Sequence[Span]) -> list[tuple[str, Span]]:
    """Sections for calls in which no call begins."""
    starts = covered(text, [(start, start + 1) for start, _ in items])
    found: list[tuple[str, Span]] = []
    for mark, after in pairwise([*sections, None]):
        limit = after.start if after is not None else len(text)
        if mark is None or mark.kind != "section" or starts.find(1, mark.start + 1, limit) >= 0:
            continue
        if after is None or after.kind != "unsection":
            found.append(("unclosed", (mark.start, limit)))
        else:
            found.append(("malformed" if text[mark.end : limit].strip() else "empty", (mark.start, after.end)))
    return found[: MAX_ITEMS + 1]


def content(text: str, taken: Iterable[Span], within: Sequence[Span] | None = None) -> tuple[Span, ...]:
    """What is left of a turn, or of the pieces `within` it: white space at its ends and pieces of nothing else are left
    out."""
    mask = covered(text, taken)
    pieces = [
        piece.span()
        for whole in ([(0, len(text))] if within is None else within)
        for piece in _FREE.finditer(mask, *whole)
        if text[slice(*piece.span())].strip()
    ]
    if not pieces:
        return ()
    start, end = pieces[0]
    pieces[0] = (end - len(text[start:end].lstrip()), end)
    start, end = pieces[-1]
    pieces[-1] = (start, start + len(text[start:end].rstrip()))
    return tuple(pieces)
