"""What the parsers `hermes` and `qwen3_coder` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from toolrl.types import ParsedTurn, ToolSpec
from toolrl_common.parsing import Block, ScannedParser, TurnScanner
from toolrl_plugin_qwen.bare_calls import take_bare_calls
from toolrl_plugin_qwen.options import QwenOptions

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class QwenScanner(TurnScanner):
    """The errors that both formats know."""

    STOP = CLOSE
    FORM: ClassVar[Callable[..., str]]
    """How a call is written, for the model; with the tool's name where it is known."""
    mended = 0
    """Characters that were looked at to be mended."""

    def stray_close(self, start: int) -> Block:
        message = f"{CLOSE} closes no call: there is no {OPEN} before it. {type(self).FORM()}"
        return self.error("stray_close", message, start, start + len(CLOSE))

    def empty(self, start: int, end: int) -> Block:
        message = f"The call is empty: nothing stands between its tags. {type(self).FORM()}"
        return self.error("empty", message, start, end)

    def unclosed(self, start: int, end: int, name: str | None = None) -> Block:
        message = f"The call was not closed with {CLOSE}, so it was not run. {type(self).FORM(name)}"
        return self.error("unclosed", message, start, end, name=name or None)


class QwenParser(ScannedParser):
    """Calls in `<tool_call>` tags, and bare ones where `lenient_json` is set."""

    SCANNER: ClassVar[type[QwenScanner]]
    OPTIONS = QwenOptions

    def stops(self, turn_text: str) -> Sequence[str]:
        """Nothing, so that a turn may hold several calls; the closing tag where `stop_after_call` is set."""
        return (CLOSE,) if self.options.stop_after_call else ()

    def revised(self, turn: ParsedTurn, text: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """With the bare calls that `lenient_json` allows."""
        if not self.options.lenient_json:
            return turn
        return take_bare_calls(turn, text, tools, self.SCANNER.FORM(), repair=self.options.repair)
