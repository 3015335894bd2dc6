"""What the parsers `hermes` and `qwen3_coder` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from toolrl.parsing import ScannedParser, take_bare_calls
from toolrl.types import ParsedTurn, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class QwenParser(ScannedParser):
    """Calls in `<tool_call>` tags, and bare ones where `lenient_json` is set."""

    FORM: ClassVar[Callable[[], str]]
    """How a call is written, for the model."""

    def stops(self, turn_text: str) -> Sequence[str]:
        """Nothing, so that a turn may hold several calls; the closing tag where `stop_after_call` is set."""
        return (CLOSE,) if self.options.stop_after_call else ()

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
        turn = super().parse(
            text, tools=tools, finish=finish, stopped_by=stopped_by, prefilled_thinking=prefilled_thinking
        )
        if not self.options.lenient_json:
            return turn
        return take_bare_calls(turn, text, tools, type(self).FORM(), repair=self.options.repair)
