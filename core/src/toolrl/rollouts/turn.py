"""One turn while it is sampled: its text with the way back from characters to tokens, and how it is parsed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Literal

from toolrl.errors import ParserError
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import ChatFormat, ReadsTokens, StopsByTools, ToolParser
from toolrl.types import Decoded, Generation, ParsedTurn, Segment, Span, ToolSpec


class TurnText:
    """Sampled ids of one turn and their text. `start` is the turn's first token in the episode's ids."""

    def __init__(self, chat: ChatFormat, start: int) -> None:
        self._chat = chat
        self._start = start
        self._decoded = Decoded("", (0,))
        self.ids: list[int] = []
        self.finish: Literal["stop", "length", "abort"] = "stop"
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        return self._decoded.text

    @property
    def decoded(self) -> Decoded:
        """The text with the character at which each of `ids` starts."""
        return self._decoded

    @property
    def ended_by_string(self) -> bool:
        """True where the last generation ended on a stop string, so that the turn is still open."""
        return self.stopped_by is not None

    def extend(self, generation: Generation) -> None:
        """Add what was sampled and decode the whole turn anew: a character may cross two generations."""
        self.ids.extend(generation.ids)
        self.finish = generation.finish
        self.stopped_by = generation.stopped_by if isinstance(generation.stopped_by, str) else None
        self._decoded = self._chat.decode(self.ids)

    def cut(self) -> None:
        """The budget ended the turn at a stop string that the parser wanted to read on after."""
        self.finish, self.stopped_by = "length", None

    def token_span(self, span: Span) -> Span:
        """The tokens, in the episode's ids, that hold the characters of `span`."""
        offsets = self._decoded.offsets
        first = max(bisect_right(offsets, span[0]) - 1, 0)
        last = bisect_left(offsets, span[1])
        return self._start + first, self._start + max(last, first)

    def segment(self) -> Segment:
        return Segment("model", self.text, (self._start, self._start + len(self.ids)))

    @staticmethod
    def tool_segment(text: str, start: int, length: int) -> Segment:
        """A tool's result that stands inside a turn."""
        return Segment("tool", text, (start, start + length))


class TurnReader:
    """Asks the parser and the end flags. A parser must not raise: where it does, a ParserError blames it."""

    def __init__(self, parser: ToolParser, end_flags: EndFlags) -> None:
        self._parser = parser
        self._end_flags = end_flags

    def stops(self, text: str, specs: Sequence[ToolSpec]) -> tuple[str, ...]:
        """What ends generation now, given the turn's text so far."""
        parser = self._parser
        try:
            stops = parser.stops_for(text, specs) if isinstance(parser, StopsByTools) else parser.stops(text)
        except Exception as error:
            raise ParserError(f"stops() raised {type(error).__name__}: {error}") from error
        return (*stops, *self._end_flags.stops())

    def read(self, text: TurnText, specs: Sequence[ToolSpec], *, in_thinking: bool) -> ParsedTurn:
        """The turn. `in_thinking` says that the prompt ended inside an opened thinking block."""
        parser, method = self._parser, "parse"
        facts: dict[str, Any] = {"tools": specs, "finish": text.finish, "stopped_by": text.stopped_by}
        try:
            if isinstance(parser, ReadsTokens):
                method = "parse_ids"
                parsed = parser.parse_ids(tuple(text.ids), text.decoded, **facts, prompt_in_thinking=in_thinking)
            else:
                parsed = parser.parse(text.text, **facts, prefilled_thinking=in_thinking)
        except Exception as error:
            raise ParserError(f"{method}() raised {type(error).__name__}: {error}") from error
        return self._end_flags.read(parsed, text.text, stopped_by=text.stopped_by)
