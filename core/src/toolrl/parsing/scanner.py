"""The state machine that parsers with tags share: content, thinking, blocks.

A turn's text is cut, without a gap, into content, thinking blocks and items. In content the next known tag decides:
`<think>` opens thinking, which its first closing tag ends; any other tag is handed to `read_block`, which a parser
implements, and which says what item stands there and where it ends. Calls inside a closed thinking block are drafts. An
opening tag inside a thinking block that never closes ends the thinking, unless the parser is told otherwise.

The same machine runs at once on a whole text or on pieces of it: `feed` goes as far as no later text could change, and
`finish` decides the rest. So a text gives the same items however it is split.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from toolrl.types import CallError, ParsedTurn, Span, ToolCall

MAX_ITEMS = 256
"""Calls and errors of one turn; what comes after is one error `too_many_calls`."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def too_many(text: str, start: int) -> CallError:
    """The error that stands for everything from `start` on."""
    message = f"Only {MAX_ITEMS} tool calls are read in one turn; what came after them was not run."
    return CallError("too_many_calls", message, span=(start, len(text)), raw=text[start:])


def in_order(
    items: Sequence[ToolCall | CallError], more: Sequence[ToolCall | CallError], text: str
) -> tuple[ToolCall | CallError, ...]:
    """Both lists as one in document order, within `MAX_ITEMS`."""
    merged = sorted((*items, *more), key=lambda item: item.span)
    if len(merged) > MAX_ITEMS:
        merged[MAX_ITEMS:] = [too_many(text, merged[MAX_ITEMS].span[0])]
    return tuple(merged)


class Block(NamedTuple):
    """What `read_block` found."""

    item: ToolCall | CallError | None
    """With its span and raw text; None where it is content in which no tag counts."""
    end: int
    """Where reading goes on."""


class TurnScanner(ABC):
    """Reads one turn, once. Text goes in by `feed` (as often as wanted) and `finish` (once, last)."""

    MARKS: re.Pattern[str]
    """`<think>` and every tag that means something in content or can end a block."""
    SIGNALS: re.Pattern[str]
    """Whatever may decide a block that waited for more text: MARKS and more."""
    OPENERS: re.Pattern[str]
    """The tags that begin a call."""
    LONGEST: int
    """An upper bound for the length of a tag, for tags that two pieces share."""
    STOP: ClassVar[str] = ""
    """The closing tag that may stop generation. A parser with several overrides `status`."""

    def __init__(self, *, thinking: bool = False, call_ends_thinking: bool = True) -> None:
        self.text = ""
        self.items: list[ToolCall | CallError] = []
        self.stopped_by: str | None = None
        self._content: list[Span] = []
        self._reasoning: list[str] | None = [] if thinking else None
        self._thinking = thinking
        self._call_ends_thinking = call_ends_thinking
        self._at = 0  # everything before is decided
        self._think_from = 0  # no closing tag of the thinking block begins before
        self._marks_from = 0  # no mark that isn't decided begins before
        self._overflow: int | None = None
        self._open_from: int | None = None

    # For parsers.

    @abstractmethod
    def read_block(self, start: int, tag: str, final: bool) -> Block | None:
        """The item whose first tag `tag` stands at `start`, or None where only more text can tell. `final` says that no
        more text comes: then it has to decide."""

    def complete(self, parsed: ParsedTurn) -> ParsedTurn:
        """A last look at the whole turn, for a parser that also reads calls from content."""
        return parsed

    def marks_from(self) -> int:
        """Asked where the text has no mark so far: from where on it may hold the beginning of one."""
        return len(self.text) - self.LONGEST + 1

    def status(self) -> Literal["calls", "final", "continue"]:
        """Of the finished turn: generation goes on where it stopped on text of a value that was not closed."""
        within_value = self._open_from is not None and self.stopped_by == self.STOP
        if within_value and self.text.rfind(self.STOP) >= (self._open_from or 0):
            return "continue"
        return "calls" if self.items else "final"

    def open_from(self, position: int) -> None:
        """To be called by `read_block` where a value that begins at `position` was not closed. If generation stopped on
        a tag behind it, that tag may have been text of the value: generation should go on."""
        self._open_from = position

    def call(self, name: str, arguments: dict[str, object], start: int, end: int, *, recovered: bool = False) -> Block:
        span = (start, end)
        return Block(ToolCall(name, arguments, span=span, raw=self.text[start:end], recovered=recovered), end)

    def error(self, kind: str, message: str, start: int, end: int, *, name: str | None = None) -> Block:
        return Block(CallError(kind, message, name=name, span=(start, end), raw=self.text[start:end]), end)

    # For callers.

    def feed(self, piece: str) -> bool:
        """Take more text. True where it completed a call."""
        looked = max(len(self.text) - self.LONGEST, 0)
        text, self.text = self.text, ""  # the one reference to it, so that Python appends without a copy
        text += piece
        self.text = text
        if not self._thinking and self.SIGNALS.search(self.text, looked) is None:
            return False
        known = len(self.items)
        self._advance(final=False)
        return any(isinstance(item, ToolCall) for item in self.items[known:])

    def finish(self, stopped_by: str | None = None) -> ParsedTurn:
        """Decide what is left. `stopped_by` is the stop string that ended generation, in the text or cut from it."""
        self.stopped_by = stopped_by
        self._advance(final=True)
        text = self.text
        if self._overflow is not None:
            self.items.append(too_many(text, self._overflow))
        parsed = ParsedTurn(
            items=tuple(self.items),
            content="".join([text[first:last] for first, last in self._content]),
            reasoning=None if self._reasoning is None else "".join(self._reasoning),
            status=self.status(),
            content_spans=tuple(self._content),
        )
        return self.complete(parsed)

    # The machine.

    def _advance(self, final: bool) -> None:
        while self._overflow is None:
            if self._thinking:
                if not self._think(final):
                    return
                continue
            mark = self.MARKS.search(self.text, max(self._at, self._marks_from))
            if mark is None:
                if final:
                    self._keep(self._at, len(self.text))
                self._marks_from = self.marks_from()
                return
            start, tag = mark.span()[0], mark.group()
            if tag == THINK_OPEN:
                self._keep(self._at, start)
                self._at = self._think_from = mark.end()
                self._thinking = True
                self._reasoning = self._reasoning or []
                continue
            block = self.read_block(start, tag, final)
            if block is None:
                self._marks_from = start  # the mark is known, and is not looked for again
                return
            if block.item is None:
                self._keep(self._at, block.end)
                self._at = block.end
                continue
            self._keep(self._at, start)
            if len(self.items) == MAX_ITEMS:
                self._overflow = start
                return
            self.items.append(block.item)
            self._at = block.end

    def _think(self, final: bool) -> bool:
        """Inside a thinking block. False where nothing more can be decided now."""
        text, start = self.text, self._at
        assert self._reasoning is not None
        close = text.find(THINK_CLOSE, self._think_from)
        if close >= 0:
            self._reasoning.append(text[start:close])
            self._at, self._thinking = close + len(THINK_CLOSE), False
            return True
        if not final:
            self._think_from = max(len(text) - len(THINK_CLOSE), start)
            return False
        # The block stays open. A stop string inside it was no end of a call that the model meant to make.
        self.open_from(start)
        opener = self.OPENERS.search(text, start) if self._call_ends_thinking else None
        end = opener.start() if opener else len(text)
        self._reasoning.append(text[start:end])
        self._at, self._thinking = end, False
        return True

    def _keep(self, start: int, end: int) -> None:
        if self._content and self._content[-1][1] == start:
            start = self._content.pop()[0]
        if start < end:
            self._content.append((start, end))
