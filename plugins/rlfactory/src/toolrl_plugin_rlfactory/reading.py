"""A turn's text as RLFactory's Qwen managers read it: `<tool_call>`, one JSON5 object, `</tool_call>`.

The text is split at `<tool_call>`; a piece ends at its first `</tool_call>`. What RLFactory calls `<empty>` (a piece
that can't be read) and `<error>` (a closing tag alone) are errors here, with the texts that RLFactory answers. A piece
of blanks alone is passed over, unless the turn has no other. Unlike in RLFactory, thinking and a call's arguments are
no place for an answer, unless `whole_text` is set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyjson5

from toolrl.types import CallError, ParsedTurn, Span, ToolCall
from toolrl_common.parsing import Block, JsonFault, TurnScanner, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
EMPTY, ERROR = "<empty>", "<error>"
EXTRACT_FAILED = "# Extract the tool name failed"
MAX_DEPTH = 64
"""Objects and lists within each other."""


def read(text: str, *, whole_text: bool = False, thinking: bool = False) -> ParsedTurn:
    """Read a turn. `thinking`: it begins inside a thinking block. The answer keeps its blanks. Never raises."""
    scanner = _Scanner(text, SimpleNamespace(call_ends_thinking=False), thinking=thinking and not whole_text)
    if whole_text:
        scanner.MARKS = scanner.OPENERS
    turn = scanner.read()
    if not turn.items:
        turn = _without_calls(turn, text, scanner.blanks)
    # What can't be read is no call, so an answer in it or behind it counts.
    unread = [item.span for item in turn.items if isinstance(item, CallError)]
    answerable = "".join([text[first:last] for first, last in sorted([*turn.content_spans, *unread])])
    answer = last_answer(text if whole_text else answerable)
    return replace(turn, answer=answer, status="calls" if turn.items else "final")


class _Scanner(TurnScanner):
    MARKS = re.compile("<tool_call>|<think>")
    OPENERS = re.compile(OPEN)

    def __init__(self, text: str, options: Any, **about: Any) -> None:
        super().__init__(text, options, **about)
        self.blanks: list[Span] = []
        """Pieces of blanks alone."""

    def read_block(self, start: int, tag: str) -> Block:
        text, inside = self.text, start + len(OPEN)
        end = text.find(OPEN, inside)
        end = len(text) if end < 0 else end
        if not text[inside:end].strip():
            self.blanks.append((start, end))
            return Block(None, end)
        close = text.find(CLOSE, inside, end)
        if close < 0:
            return self.error("unclosed", EXTRACT_FAILED, start, end)
        return self._call(text[inside:close].strip(), start, close + len(CLOSE))

    def _call(self, body: str, start: int, end: int) -> Block:
        if not body:
            return self.error("empty", EXTRACT_FAILED, start, end)
        try:
            value = _value(body)
        except (ValueError, RecursionError):
            return self.error("invalid_json", EXTRACT_FAILED, start, end)
        if not isinstance(value, dict):
            return self.error("not_object", EXTRACT_FAILED, start, end)
        for key in ("name", "arguments"):
            if key not in value:
                return self.error(f"missing_{key}", EXTRACT_FAILED, start, end)
        name, arguments = value["name"], value["arguments"]
        if not isinstance(name, str) or not name.strip():
            return self.error("bad_name", not_found(f"{name!r:.80}"), start, end)
        if not isinstance(arguments, dict):
            return self.error("bad_arguments", no_object(arguments), start, end, name=name)
        return self.call(name, arguments, start, end)


def _without_calls(turn: ParsedTurn, text: str, blanks: list[Span]) -> ParsedTurn:
    """A turn without calls: a piece of blanks, or else a closing tag alone, is its one error, if there is any."""
    if blanks:
        start, end = blanks[-1]
        kind, message = "unclosed", EXTRACT_FAILED
    else:
        places = (text.find(CLOSE, first, last) for first, last in turn.content_spans)
        start = next((place for place in places if place >= 0), -1)
        if start < 0:
            return turn
        end = start + len(CLOSE)
        kind, message = "stray_close", not_found(ERROR)
    item = CallError(kind, message, span=(start, end), raw=text[start:end])
    pieces = ((max(first, low), min(last, high)) for first, last in turn.content_spans
              for low, high in ((0, start), (end, len(text))))  # fmt: skip
    spans = tuple((first, last) for first, last in pieces if first < last)
    return replace(turn, items=(item,), content="".join([text[a:b] for a, b in spans]), content_spans=spans)


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


def _value(body: str) -> Any:
    """What a piece holds. Raises ValueError, RecursionError."""
    strict = read_json(body)
    if not isinstance(strict, JsonFault) and strict[1] == len(body):
        return strict[0]
    try:
        value = pyjson5.decode(body, maxdepth=MAX_DEPTH)
    except pyjson5.Json5Exception as error:
        raise ValueError(str(error)) from None
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # Servers take no NaN and no half of a pair.
    return value


# The form in which RLFactory's managers hand calls on.


def dumped(arguments: object) -> str:
    """Arguments as RLFactory writes them."""
    return json.dumps(arguments, ensure_ascii=False, indent=4)


def as_tools(items: Sequence[ToolCall | CallError]) -> Iterator[dict[str, str]]:
    """Calls and errors as `parse_tools` gives them."""
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
