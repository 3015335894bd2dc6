"""The parser `tir`: code fences and tags that run inside the model's turn.

    ```python
    print(2**10)
    ```

    <calculator>3 * (4 - 1)</calculator>

Other tools of the environment are called by their own markers, or by tags of their names.

Generation stops where a call may be complete, the results follow in the same turn, and generation goes on. In many
tokenizers three backticks are one token that opens and closes, so what ends generation depends on the text so far, and
a stop that completed nothing has the status `continue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from toolrl.protocols import BuildContext
from toolrl.types import CallRecord, ParsedTurn, ToolCall, ToolSpec
from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.results import inline_results
from toolrl_plugin_tir.scanner import TirScanner
from toolrl_plugin_tir.syntax import THINK_CLOSE


class TirParser:
    """Fences and tags. Stateless: one object serves all episodes."""

    def __init__(self, options: TirParserOptions | None = None, context: BuildContext | None = None) -> None:
        self._options = options or TirParserOptions()

    def scanner(self, tools: Sequence[ToolSpec] = (), *, prefilled_thinking: bool = False) -> TirScanner:
        """The state machine of one turn, for text that comes in pieces; `parse` runs the same one on a whole text."""
        return TirScanner(self._options, tools, thinking=prefilled_thinking)

    def stops(self, turn_text: str) -> Sequence[str]:
        """What may end a call where there are `python` and `calculator` alone."""
        return self.stops_for(turn_text, ())

    def stops_for(self, turn_text: str, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """What may end the construct that is open, or in content any call. `</think>` too, while it isn't known whether
        the prompt opened a thinking block: what stands in one opens nothing."""
        close = turn_text.find(THINK_CLOSE)
        opened = "<think>" in turn_text[: close if close >= 0 else None]
        scanner = self.scanner(tools, prefilled_thinking=close >= 0 and not opened)
        scanner.text = turn_text
        stops = scanner.awaited()
        return stops if opened or close >= 0 else (*stops, THINK_CLOSE)

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Whether its calls name known tools is the executor's part."""
        scanner = self.scanner(tools, prefilled_thinking=prefilled_thinking)
        scanner.text = text
        return scanner.finish(stopped_by)

    def render_results(self, records: Sequence[CallRecord]) -> str:
        """An output fence for each item, calls and errors alike; the text stands inside the turn."""
        return inline_results(records)


def check() -> str:
    """For `toolrl doctor`: read a call."""
    items = TirParser().parse("```python\nprint(1)\n```", tools=()).items
    if len(items) != 1 or not isinstance(items[0], ToolCall):
        raise RuntimeError(f"a well-formed call was read as {items!r}")
    return "reads a call"
