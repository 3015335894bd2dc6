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

from toolrl.types import CallRecord, ToolSpec
from toolrl_common.parsing import ScannedParser, reads_a_call
from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.results import inline_results
from toolrl_plugin_tir.scanner import TirScanner
from toolrl_plugin_tir.syntax import THINK_CLOSE


class TirParser(ScannedParser):
    """Fences and tags. Stateless: one object serves all episodes."""

    SCANNER = TirScanner
    OPTIONS = TirParserOptions

    def stops(self, turn_text: str) -> Sequence[str]:
        """What may end a call where there are `python` and `calculator` alone."""
        return self.stops_for(turn_text, ())

    def stops_for(self, turn_text: str, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """What may end the construct that is open, or in content any call. `</think>` too, while it isn't known whether
        the prompt opened a thinking block: what stands in one opens nothing."""
        close = turn_text.find(THINK_CLOSE)
        opened = "<think>" in turn_text[: close if close >= 0 else None]
        stops = TirScanner(turn_text, self.options, tools, thinking=close >= 0 and not opened).awaited()
        return stops if opened or close >= 0 else (*stops, THINK_CLOSE)

    def render_results(self, records: Sequence[CallRecord]) -> str:
        """An output fence for each item, calls and errors alike; the text stands inside the turn."""
        return inline_results(records)


def check() -> str:
    """For `toolrl doctor`: read a call."""
    return reads_a_call(TirParser(), "```python\nprint(1)\n```")
