"""What parsers have in common that read with a `TurnScanner` and answer by tool messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from toolrl.parsing.results import tool_messages
from toolrl.parsing.scanner import TurnScanner
from toolrl.types import CallRecord, Message, ParsedTurn, ToolSpec


class ScannedParser(ABC):
    """A parser that gives its scanner. Stateless: one object serves all episodes."""

    @abstractmethod
    def scanner(self, tools: Sequence[ToolSpec] = (), *, prefilled_thinking: bool = False) -> TurnScanner:
        """The state machine of one turn, for text that comes in pieces; `parse` runs the same one on a whole text."""

    def stops(self, turn_text: str) -> Sequence[str]:
        """Nothing, so that a turn may hold several calls."""
        return ()

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
        scanner = self.scanner(tools, prefilled_thinking=prefilled_thinking)
        scanner.text = text
        return scanner.finish(stopped_by)

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        """A tool message for each item, in order."""
        return tool_messages(records)
