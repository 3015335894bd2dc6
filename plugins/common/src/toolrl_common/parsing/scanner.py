"""The state machine that parsers with tags share: content, thinking, blocks.

A turn's text is cut, without a gap, into content, thinking blocks and items. In content the next known tag decides:
`<think>` opens thinking, which its first closing tag ends; any other tag is handed to `read_block`, which a parser
implements; it returns the item that stands there and its end. Calls inside a closed thinking block are drafts. An
opening tag inside a thinking block that never closes ends the thinking, unless `call_ends_thinking` is off.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from toolrl.parsing import MAX_ITEMS
from toolrl.parsing.items import too_many
from toolrl.protocols import ToolParser
from toolrl.types import CallError, ParsedTurn, Span, ToolCall, ToolSpec

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class Block(NamedTuple):
    """What `read_block` found."""

    item: ToolCall | CallError | None
    """With its span and raw text; None where it is content in which no tag counts."""
    end: int
    """Where reading continues."""


class TurnScanner(ABC):
    """Reads one turn, once."""

    MARKS: re.Pattern[str]
    """`<think>` and every tag that means something in content."""
    OPENERS: re.Pattern[str]
    """The tags that begin a call."""
    STOP: ClassVar[str] = ""
    """The closing tag that may stop generation. A parser with several overrides `status`."""

    def __init__(
        self,
        text: str,
        options: Any,
        tools: Sequence[ToolSpec] = (),
        *,
        stopped_by: str | None = None,
        thinking: bool = False,
    ) -> None:
        """`options` are the parser's, with `call_ends_thinking`. `stopped_by` is the stop string that ended generation,
        in the text or cut from it; `thinking`: the text begins inside a thinking block."""
        self.text = text
        self.options = options
        self.tools = tools
        self.stopped_by = stopped_by
        self.ended = True
        """False while generation continues: then `read_block` gives None for a block that isn't complete."""
        self.items: list[ToolCall | CallError] = []
        self._content: list[Span] = []
        self._reasoning: list[str] | None = [] if thinking else None
        self._thinking = thinking
        self._at = 0  # everything before is decided
        self._open_from: int | None = None

    # For parsers.

    @abstractmethod
    def read_block(self, start: int, tag: str) -> Block | None:
        """The item whose first tag `tag` stands at `start`; None only where generation continues and the block is
        incomplete."""

    def status(self) -> Literal["calls", "final", "continue"]:
        """Of the finished turn: generation continues where it stopped on text of a value that was not closed."""
        within_value = self._open_from is not None and self.stopped_by == self.STOP
        if within_value and self.text.rfind(self.STOP) >= (self._open_from or 0):
            return "continue"
        return "calls" if self.items else "final"

    def open_from(self, position: int) -> None:
        """To be called by `read_block` where a value that begins at `position` was not closed. If generation stopped on
        a tag behind it, that tag may have been text of the value: generation should continue."""
        self._open_from = position

    def call(self, name: str, arguments: dict[str, object], start: int, end: int, *, recovered: bool = False) -> Block:
        span = (start, end)
        return Block(ToolCall(name, arguments, span=span, raw=self.text[start:end], recovered=recovered), end)

    def error(self, kind: str, message: str, start: int, end: int, *, name: str | None = None) -> Block:
        return Block(CallError(kind, message, name=name, span=(start, end), raw=self.text[start:end]), end)

    # For callers.

    def read(self) -> ParsedTurn:
        """The turn."""
        self._advance()
        return ParsedTurn(
            items=tuple(self.items),
            content="".join([self.text[first:last] for first, last in self._content]),
            reasoning=None if self._reasoning is None else "".join(self._reasoning),
            status=self.status(),
            content_spans=tuple(self._content),
        )

    # The machine.

    def _advance(self) -> None:
        """Read to the text's end, or to a block that isn't complete."""
        while True:
            if self._thinking:
                if not self._think():
                    return
                continue
            mark = self.MARKS.search(self.text, self._at)
            if mark is None:
                self._keep(self._at, len(self.text))
                return
            start, tag = mark.start(), mark.group()
            if tag == THINK_OPEN:
                self._keep(self._at, start)
                self._at, self._thinking = mark.end(), True
                self._reasoning = self._reasoning or []
                continue
            block = self.read_block(start, tag)
            if block is None:
                return
            if block.item is None:
                self._keep(self._at, block.end)
            else:
                self._keep(self._at, start)
                if len(self.items) == MAX_ITEMS:
                    self.items.append(too_many(self.text, start))
                    return
                self.items.append(block.item)
            self._at = block.end

    def _think(self) -> bool:
        """Inside a thinking block. False where more text may belong to it."""
        text, start = self.text, self._at
        assert self._reasoning is not None
        close = text.find(THINK_CLOSE, start)
        if close >= 0:
            self._reasoning.append(text[start:close])
            self._at, self._thinking = close + len(THINK_CLOSE), False
            return True
        if not self.ended:
            return False
        # The block stays open. A stop string inside it was no end of a call that the model meant to make.
        self.open_from(start)
        opener = self.OPENERS.search(text, start) if self.options.call_ends_thinking else None
        end = opener.start() if opener else len(text)
        self._reasoning.append(text[start:end])
        self._at, self._thinking = end, False
        return True

    def _keep(self, start: int, end: int) -> None:
        if self._content and self._content[-1][1] == start:
            start = self._content.pop()[0]
        if start < end:
            self._content.append((start, end))


class ScannedParser(ToolParser):
    """A parser that reads with a `TurnScanner`. Stateless: one object serves all episodes.

    A subclass names its scanner and its options; the constructor is that of every component.
    """

    SCANNER: ClassVar[type[TurnScanner]]
    OPTIONS: ClassVar[type]

    def __init__(self, options: Any = None, context: Any = None) -> None:
        self.options = options or self.OPTIONS()

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Whether its calls name known tools and fit their schemas is the executor's part."""
        scanner = self.SCANNER(text, self.options, tools, stopped_by=stopped_by, thinking=prefilled_thinking)
        return self.revised(scanner.read(), text, tools)

    def revised(self, turn: ParsedTurn, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """The turn as a subclass changes it after reading."""
        return turn


def reads_a_call(parser: ScannedParser, text: str) -> str:
    """For a component's `check`: raises RuntimeError where the parser doesn't read the one call in a text."""
    items = parser.parse(text, tools=()).items
    if len(items) != 1 or not isinstance(items[0], ToolCall):
        raise RuntimeError(f"a well-formed call was read as {items!r}")
    return "reads a call"
