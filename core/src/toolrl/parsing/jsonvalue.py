"""One strict JSON value out of a longer text, in time linear in what it reads.

Method: outside its strings JSON holds neither `<` nor a backslash. One regular expression that knows strings therefore
finds how far a value can reach, and only that slice is given to the C decoder, whose error costs O(position). Because
two readings that start outside and inside the same string disagree about every later quote, any character is covered by
at most two such slices, however many readings a text provokes.

Stricter than Python's `json`: numbers are finite, strings can be encoded as UTF-8, nesting is at most `MAX_DEPTH`.
Of equal keys the last one counts, as everywhere in Python.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

MAX_DEPTH = 128
"""Objects and lists within each other."""

WHITESPACE = re.compile(r"[ \t\n\r]*")
"""What JSON calls whitespace, no more: a no-break space or a byte order mark is an error."""

_WINDOW = 4096
_LONGEST_WORD = len("-Infinity")
_REACH = re.compile(r'(?:[^"<\\]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^{}\[\]]+")
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


@dataclass(frozen=True, slots=True)
class JsonFault:
    """Why a text is no JSON value."""

    kind: str
    """`invalid_json` or `too_deep`."""
    reason: str
    """In words, for the model."""
    position: int
    """The character at which reading failed."""
    resume: int
    """From where a caller should look for what comes next: not before the string in which reading failed."""
    open_string: bool = False
    """True where the text ended inside a string: more text might mend it."""


def reach(text: str, start: int) -> int:
    """The end of the stretch from `start` that JSON could be made of, string-aware."""
    match = _REACH.match(text, start)
    return match.end() if match else start  # the pattern matches the empty string too


def read_json(text: str, start: int = 0) -> tuple[Any, int] | JsonFault:
    """The value that begins at `start` and the index after it, or why there is none. No whitespace is skipped."""
    end = reach(text, start)
    body = text[start:end]
    if _too_deep(body):
        return JsonFault("too_deep", f"objects and lists are nested more than {MAX_DEPTH} deep", start, end)
    try:
        value, length = _DECODER.raw_decode(body)
    except json.JSONDecodeError as error:
        return _fault(text, start, end, error)
    except RecursionError:
        return JsonFault("too_deep", "objects and lists are nested too deep", start, end)
    except ValueError as error:
        return JsonFault("invalid_json", str(error), start, end)
    if not _encodable(value, body):
        return JsonFault("invalid_json", "a string holds half of a surrogate pair", start, end)
    return value, start + length


def read_json_in_prose(text: str, start: int) -> tuple[Any, int] | JsonFault:
    """`read_json` where no tag bounds the value: in windows that double, so that it costs what the value is long."""
    window = _WINDOW
    while True:
        piece = text[start : start + window]
        read = read_json(piece)
        whole = start + window >= len(text)
        if not isinstance(read, JsonFault):
            return read[0], start + read[1]
        # Where the window cut the value, reading fails at its end, or at the string that reaches over it.
        cut = read.kind == "invalid_json" and read.position >= min(reach(piece, 0), window - _LONGEST_WORD)
        if whole or not cut:
            return replace(read, position=start + read.position, resume=start + read.resume)
        window *= 2


def excerpt(text: str, start: int, end: int) -> str:
    """The beginning of text[start:end], quoted, for a message. What a message shows has to lie before the end of its
    item: what comes later may not be known yet."""
    return json.dumps(text[start : min(start + 40, end)], ensure_ascii=False)


def near(text: str, position: int, end: int) -> str:
    """The text around a position and before `end`, quoted, for a message."""
    return excerpt(text, max(min(position, end) - 20, 0), end)


def _fault(text: str, start: int, end: int, error: json.JSONDecodeError) -> JsonFault:
    position = start + error.pos
    if position >= end:
        if text.startswith('"', end):
            reason = "a string is opened and not closed"
            return JsonFault("invalid_json", reason, end, end, open_string=not _has_control(text, end))
        return JsonFault("invalid_json", "it ends too early", end, end)
    if error.msg.startswith("Invalid control character"):
        reason = "a string holds a raw line break or control character; write it as an escape such as \\n"
        return JsonFault("invalid_json", reason, position, max(text.rfind('"', start, position), start))
    if text[max(position - 64, start) : position].rstrip().endswith(",") and text.startswith(("}", "]"), position):
        return JsonFault("invalid_json", _TRAILING_COMMA, position, position)
    return JsonFault("invalid_json", _REASONS.get(error.msg, error.msg.lower()), position, position)


_TRAILING_COMMA = "a comma stands before the closing bracket"
_REASONS = {
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": _TRAILING_COMMA,
    "Illegal trailing comma before end of array": _TRAILING_COMMA,
    "Expecting value": "expected a JSON value",
    "Expecting ',' delimiter": "expected a comma or the closing brace",
    "Expecting ':' delimiter": "expected a colon after the key",
    "Invalid \\escape": "a backslash stands before a character that JSON can't escape; write it twice",
}

_CONTROL = re.compile(r"[\x00-\x1f]")


def _has_control(text: str, start: int) -> bool:
    return _CONTROL.search(text, start) is not None


def _too_deep(body: str) -> bool:
    if len(body) <= MAX_DEPTH or body.count("{") + body.count("[") <= MAX_DEPTH:
        return False
    brackets = _NO_BRACKET.sub("", _STRING.sub("", body))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH


def _encodable(value: Any, body: str) -> bool:
    """A lone surrogate can come from the text itself or from an escape."""
    try:
        if not body.isascii():
            body.encode()
        if "\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40} is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_constant)
