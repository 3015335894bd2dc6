"""The parser `areal_tir`: what `tir` reads, as AReaL's example runs it.

    ```python
    print(2**10)
    ```

    <python>print(2**10)</python> and <calculator>3 * (4 - 1)</calculator>

Fences and tags are found by the parser `tir`. What differs is what becomes of them: AReaL runs one call a turn, the
last that is complete; markers of a tool that isn't enabled are text; results are cut to 256 characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from toolrl.protocols import BuildContext
from toolrl.types import CallError, CallRecord, ParsedTurn, Span, ToolCall, ToolSpec
from toolrl_plugin_areal.options import ArealTirParserOptions
from toolrl_plugin_tir.parser import TirParser
from toolrl_plugin_tir.wording import inline_results

Item = ToolCall | CallError

_UNCLOSED = ("unclosed", "stray_close")
_CALLABLE = ("python", "calculator")


class ArealTirParser(TirParser):
    """Fences and tags, one call a turn. Stateless: one object serves all episodes."""

    def __init__(self, options: ArealTirParserOptions | None = None, context: BuildContext | None = None) -> None:
        super().__init__()
        self._answered = options or ArealTirParserOptions()

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Without `tools`, calls of `python` and `calculator` are read."""
        parsed = super().parse(
            text, tools=tools, finish=finish, stopped_by=stopped_by, prefilled_thinking=prefilled_thinking
        )
        if not parsed.items:
            return parsed
        items = self._chosen(parsed.items, tools)
        if len(items) == len(parsed.items):
            return parsed
        spans = _without(parsed.content_spans, parsed.items, items)
        status: Literal["calls", "final", "continue"] = "calls" if items else "final"
        if parsed.status == "continue" or (not items and self._is_marker(stopped_by, tools)):
            status = "continue"
        content = "".join([text[start:end] for start, end in spans])
        return replace(parsed, items=items, content=content, content_spans=spans, status=status)

    def render_results(self, records: Sequence[CallRecord]) -> str:
        """An output fence for each item; the text stands inside the turn."""
        return inline_results([self._cut(record) for record in records])

    def _chosen(self, items: Sequence[Item], tools: Sequence[ToolSpec]) -> tuple[Item, ...]:
        """The items that are answered."""
        enabled = {spec.name for spec in tools} or _CALLABLE
        kept = [item for item in items if not isinstance(item, ToolCall) or item.name in enabled]
        if not self._answered.answer_unclosed:
            kept = [item for item in kept if not isinstance(item, CallError) or item.kind not in _UNCLOSED]
        calls = [item for item in kept if isinstance(item, ToolCall)]
        return (calls[-1],) if calls else tuple(kept)

    def _is_marker(self, stopped_by: str | None, tools: Sequence[ToolSpec]) -> bool:
        """Whether generation stopped on what ends a call, and not on an end flag or another text."""
        return stopped_by is not None and (stopped_by in self.stops_for("", tools) or set(stopped_by) in ({"`"}, {"~"}))

    def _cut(self, record: CallRecord) -> CallRecord:
        text, limit = record.result.text, self._answered.max_result_chars
        if limit is None or len(text) <= limit:
            return record
        half = limit // 2
        return replace(record, result=replace(record.result, text=f"{text[:half]}...{text[-half:]}"))


def _without(spans: Sequence[Span], items: Sequence[Item], kept: Sequence[Item]) -> tuple[Span, ...]:
    """The content's spans, with those of the items that are text after all. Neighbours become one."""
    chosen = {item.span for item in kept}
    merged: list[Span] = []
    for start, end in sorted([*spans, *(item.span for item in items if item.span not in chosen)]):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(merged)
