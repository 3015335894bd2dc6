"""A turn's text as RLFactory's Qwen managers read it: `<tool_call>`, one JSON5 object, `</tool_call>`.

The text is split at `<tool_call>`; a piece ends at its first `</tool_call>`. One pass finds the pieces, so reading is
linear. What RLFactory calls `<empty>` (a piece that can't be read) and `<error>` (a closing tag alone) are errors here,
with the texts that RLFactory answers. A piece of blanks alone is passed over, unless the turn has no other. Unlike in
RLFactory, thinking and a call's arguments are no place for an answer, unless `whole_text` is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyjson5

from toolrl.parsing import MAX_ITEMS
from toolrl.parsing.jsonvalue import read_valid
from toolrl.types import CallError, Span, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
EMPTY, ERROR = "<empty>", "<error>"
EXTRACT_FAILED = "# Extract the tool name failed"
MAX_DEPTH = 64
"""Objects and lists within each other."""


@dataclass(slots=True)
class Reading:
    """What a text holds."""

    items: list[ToolCall | CallError] = field(default_factory=list)
    content: list[Span] = field(default_factory=list)
    reasoning: list[Span] = field(default_factory=list)
    answer: str | None = None
    """The inside of the last <answer>…</answer>, as it is written."""


def read(text: str, *, whole_text: bool = False, thinking: bool = False) -> Reading:
    """Read a turn. `thinking` says that it begins inside a thinking block. Never raises."""
    found = Reading()
    blanks = _split(text, found, whole_text, thinking and not whole_text)
    if blanks and not found.items:
        found.items.append(_error("unclosed", EXTRACT_FAILED, text, blanks.pop()))
    if blanks:
        found.content = _joined([*found.content, *blanks])
    if not found.items:
        _stray_close(text, found)
    found.answer = last_answer(text if whole_text else _answerable(text, found))
    return found


def _answerable(text: str, found: Reading) -> str:
    """The text without thinking and calls. What can't be read is no call, so an answer in it or behind it counts."""
    unread = [item.span for item in found.items if isinstance(item, CallError)]
    return "".join([text[first:last] for first, last in sorted([*found.content, *unread])])


def last_answer(text: str) -> str | None:
    """What stands in the last <answer>…</answer> of a text, as a search from its beginning finds it."""
    answer, at = None, 0
    while (start := text.find(ANSWER, at)) >= 0 and (end := text.find(ANSWER_END, start + len(ANSWER))) >= 0:
        answer, at = text[start + len(ANSWER) : end], end + len(ANSWER_END)
    return answer


def not_found(name: object) -> str:
    """RLFactory's answer to a call of a tool that isn't there."""
    return f"# Failed to find the tool {name} in the tool map"


def no_object(arguments: object) -> str:
    """RLFactory's answer to arguments that are something else than an object."""
    if isinstance(arguments, str):
        return f"parse json failed, argument is: {arguments:.200}"
    return f"Unexpected type of args: {type(arguments)} (args: {arguments!r:.200})"


def _split(text: str, found: Reading, whole_text: bool, thinking: bool) -> list[Span]:
    """Fill `found`; the pieces that hold nothing but blanks."""
    at = 0
    blanks: list[Span] = []
    if thinking:
        at = _thought(text, 0, 0, found)
    call = _Finder(text, OPEN)
    think = _Finder(text, THINK)
    while at < len(text):
        start = call.after(at)
        block = len(text) if whole_text else think.after(at)
        if block < start:
            _add(found.content, at, block)
            at = _thought(text, block, block + len(THINK), found)
            continue
        _add(found.content, at, start)
        if start == len(text):
            break
        end = call.after(start + len(OPEN))
        if not text[start + len(OPEN) : end].strip():
            blanks.append((start, end))
            at = end
            continue
        if len(found.items) >= MAX_ITEMS:
            message = f"More than {MAX_ITEMS} calls in one turn: these were not read. Make fewer calls in a turn."
            found.items.append(_error("too_many_calls", message, text, (start, len(text))))
            break
        at = _piece(text, start, end, found)
    return blanks


def _thought(text: str, start: int, inside: int, found: Reading) -> int:
    """Pass over a thinking block that begins at `start`; without an end it is all that follows."""
    close = text.find(THINK_END, inside)
    found.reasoning.append((inside, close if close >= 0 else len(text)))
    return close + len(THINK_END) if close >= 0 else len(text)


def _piece(text: str, start: int, end: int, found: Reading) -> int:
    """One piece, from its opening tag to the next one or the text's end; the index after what it took."""
    close = text.find(CLOSE, start + len(OPEN), end)
    if close < 0:
        found.items.append(_error("unclosed", EXTRACT_FAILED, text, (start, end)))
        return end
    span = (start, close + len(CLOSE))
    found.items.append(_call(text[start + len(OPEN) : close].strip(), text, span))
    return span[1]


def _call(body: str, text: str, span: Span) -> ToolCall | CallError:
    if not body:
        return _error("empty", EXTRACT_FAILED, text, span)
    try:
        value = _value(body)
    except (ValueError, RecursionError):
        return _error("invalid_json", EXTRACT_FAILED, text, span)
    if not isinstance(value, dict):
        return _error("not_object", EXTRACT_FAILED, text, span)
    if "name" not in value or "arguments" not in value:
        return _error("missing_name" if "name" not in value else "missing_arguments", EXTRACT_FAILED, text, span)
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not name.strip():
        return _error("bad_name", not_found(f"{name!r:.80}"), text, span)
    if not isinstance(arguments, dict):
        return _error("bad_arguments", no_object(arguments), text, span, name)
    return ToolCall(name, arguments, span=span, raw=text[span[0] : span[1]])


def _value(body: str) -> Any:
    """What a piece holds. Raises ValueError, RecursionError."""
    strict = read_valid(body, 0)
    if strict is not None and strict[1] == len(body):
        return strict[0]
    try:
        value = pyjson5.decode(body, maxdepth=MAX_DEPTH)
    except pyjson5.Json5Exception as error:
        raise ValueError(str(error)) from None
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # Servers take no NaN and no half of a pair.
    return value


def _stray_close(text: str, found: Reading) -> None:
    """A closing tag and no opening one, in content."""
    for index, (first, last) in enumerate(found.content):
        at = text.find(CLOSE, first, last)
        if at >= 0:
            span = (at, at + len(CLOSE))
            found.items.append(_error("stray_close", not_found(ERROR), text, span))
            pieces = [(a, b) for a, b in ((first, span[0]), (span[1], last)) if a < b]
            found.content[index : index + 1] = pieces
            return


def _error(kind: str, message: str, text: str, span: Span, name: str | None = None) -> CallError:
    return CallError(kind, message, name=name, span=span, raw=text[span[0] : span[1]])


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, neighbours as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _add(spans: list[Span], start: int, end: int) -> None:
    if start < end:
        spans.append((start, end))


class _Finder:
    """Where a mark comes next; looks at each character once, however often it is asked."""

    def __init__(self, text: str, mark: str) -> None:
        self._text = text
        self._mark = mark
        self._next = -1

    def after(self, at: int) -> int:
        """The first mark at `at` or later; the text's length where there is none."""
        if self._next < at:
            found = self._text.find(self._mark, at)
            self._next = found if found >= 0 else len(self._text)
        return self._next


# The form in which RLFactory's managers hand calls on.


def as_tools(items: list[ToolCall | CallError]) -> list[dict[str, str]]:
    """Calls and errors as `parse_tools` gives them."""
    return list(_tools(items))


def dumped(arguments: object) -> str:
    """Arguments as RLFactory writes them."""
    return json.dumps(arguments, ensure_ascii=False, indent=4)


def _tools(items: list[ToolCall | CallError]) -> Iterator[dict[str, str]]:
    for item in items:
        if isinstance(item, ToolCall):
            yield {"name": item.name, "args": dumped(dict(item.arguments))}
        elif item.kind == "stray_close":
            yield {"name": ERROR, "args": EXTRACT_FAILED}
        elif item.kind in ("bad_name", "bad_arguments"):
            call = _value(item.raw[len(OPEN) : -len(CLOSE)].strip())
            yield {"name": str(call["name"]), "args": dumped(call["arguments"])}
        else:
            yield {"name": EMPTY, "args": item.message}
