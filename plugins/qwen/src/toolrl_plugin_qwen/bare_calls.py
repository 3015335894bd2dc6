"""Calls without tags: a JSON object that names a known tool, bare at the start of a line or in a code fence.

Method: only an object that begins with the name of a known tool and then its arguments counts, in content alone, so
that ordinary JSON in an answer stays what it is. Before it may stand what Qwen2.5-Coder writes there, `<tools>` or the
bracket of a list, and the next one may follow it in its line. A broken one is an error like any other: it was meant as
a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolrl.parsing.items import MAX_ITEMS, in_order
from toolrl.types import CallError, ParsedTurn, Span, ToolCall, ToolSpec
from toolrl_common.parsing.jsonvalue import JsonFault, near, read_json
from toolrl_plugin_qwen.mend import MAX_LENGTH, mend_json

MAX_BROKEN = 16
"""After so many objects that can't be read the rest is content: each of them may cost a look at all of the text."""

MAX_TRIED = 2 * MAX_LENGTH
"""Characters of a turn that may be mended, or be looked at in vain for that."""

_OBJECT = (
    r"(?P<object>\{\s*+(?P<quote>[\"'])name(?P=quote)\s*+:\s*+(?P=quote)(?P<name>[^\"'\\\n]++)(?P=quote)\s*+,"
    r"\s*+(?P=quote)arguments(?P=quote)\s*+:)"
)
_START = re.compile(
    rf"^[ \t]*+(?P<around>(?:```\w*+[ \t]*+\n\s*+)?+(?:<tools>\s*+)?+(?:\[\s*+)?+){_OBJECT}", re.MULTILINE
)
_NEXT = re.compile(rf"(?P<around>)[ \t]*+,?+[ \t]*+{_OBJECT}")
_AROUND_END = re.compile(r"(?:\s*+\])?+(?:\s*+</tools>)?+(?:\s*+```)?+")


def take_bare_calls(
    parsed: ParsedTurn, text: str, tools: Sequence[ToolSpec], form: str, *, repair: bool = False
) -> ParsedTurn:
    """The same turn with bare calls taken from its content. `form` shows the model how a call is written; `repair`
    mends what can be mended, of so many characters of a turn as `MAX_TRIED` says."""
    reader = _BareCallReader({tool.name for tool in tools}, form, MAX_TRIED if repair else 0)
    found: list[ToolCall | CallError] = []
    spans: list[Span] = []
    broken = 0
    for first, last in parsed.content_spans:
        at = first
        done = broken > MAX_BROKEN or len(found) > MAX_ITEMS
        if done or text.find("arguments", first, last) < 0:  # content may lie in very many pieces
            spans.append((first, last))
            continue
        for item in reader.read(text, first, last):
            broken += isinstance(item, CallError)
            if broken > MAX_BROKEN or len(found) > MAX_ITEMS:
                break
            if at < item.span[0]:
                spans.append((at, item.span[0]))
            found.append(item)
            at = item.span[1]
        if at < last:
            spans.append((at, last))
    if not found:
        return parsed
    items = in_order(parsed.items, found, text)
    if len(items) > MAX_ITEMS:  # the last one stands for all that follows, content too
        spans = [(first, last) for first, last in spans if last <= items[-1].span[0]]
    return replace(
        parsed,
        items=items,
        content="".join([text[first:last] for first, last in spans]),
        content_spans=tuple(spans),
        status="calls" if parsed.status == "final" else parsed.status,
    )


@dataclass(slots=True)
class _BareCallReader:
    names: set[str]
    form: str
    left: int
    """Characters that may still be tried to mend."""

    def read(self, text: str, first: int, last: int) -> Iterator[ToolCall | CallError]:
        """The bare calls in text[first:last]."""
        piece = text[first:last]
        item: ToolCall | CallError | None
        at, found, opened = 0, False, False
        while match := (_NEXT.match(piece, at) if found else None) or _START.search(piece, at):
            found, at = False, match.end()
            opened = opened or bool(match["around"])
            if match["name"] not in self.names:
                continue
            start, begin = match.start() if match.re is _START else match.start("object"), match.start("object")
            read, recovered = self._value(piece, begin)
            if isinstance(read, JsonFault):
                item, at = self._broken(piece, read, match)
            else:
                at = read[1]
                item = self._call(read[0], recovered)
                if item is None:
                    continue
                closing = _AROUND_END.match(piece, at) if opened else None
                if closing is not None and closing.end() > at:
                    at, opened = closing.end(), False
            span = (first + start, first + at)
            yield replace(item, span=span, raw=text[span[0] : span[1]])
            found = True

    def _value(self, piece: str, begin: int) -> tuple[tuple[Any, int] | JsonFault, bool]:
        """The object that begins at `begin`, and whether it had to be mended."""
        read = read_json(piece, begin)
        if not isinstance(read, JsonFault) or read.kind != "invalid_json" or self.left <= 0:
            return read, False
        mended = mend_json(piece, begin)
        if not isinstance(mended, tuple):
            self.left -= min(MAX_LENGTH, len(piece) - begin)
            return read, False
        self.left -= mended[1] - begin
        return mended, True

    def _broken(self, piece: str, fault: JsonFault, match: re.Match[str]) -> tuple[CallError, int]:
        """The error of an object that can't be read, and where it ends."""
        end = max(fault.resume, match.end())
        message = f"The call is not valid JSON: {fault.reason}, near {near(piece, fault.position, end)}. {self.form}"
        open_end = fault.resume >= len(piece) or fault.open_string
        kind = "unclosed" if open_end and fault.kind == "invalid_json" else fault.kind
        return CallError(kind, message, name=match["name"]), end

    def _call(self, value: dict[str, Any], recovered: bool) -> ToolCall | CallError | None:
        """The call that an object is; None where it names no known tool."""
        name = value["name"]  # the last of equal keys counts
        if not isinstance(name, str) or name not in self.names:
            return None
        if isinstance(value["arguments"], dict):
            return ToolCall(name, value["arguments"], recovered=recovered)
        return CallError("bad_arguments", f'"arguments" has to be a JSON object. {self.form}', name=name)
