"""One strict JSON value out of a longer text, in time linear in what it reads.

Method: the C decoder reads from where the value begins to where it ends or fails. Outside its strings JSON holds
neither `<` nor a backslash, so where it fails, one regular expression that knows strings finds how far the value can
have reached. Because two readings that start outside and inside the same string disagree about every later quote, any
character is read at most twice, however many readings a text provokes.

Stricter than Python's `json`: numbers are finite, strings can be encoded as UTF-8, nesting is at most `MAX_DEPTH`.
Of equal keys the last one counts, as everywhere in Python.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any

MAX_DEPTH = 128
"""Objects and lists within each other."""

WHITESPACE = re.compile(r"[ \t\n\r]*")
"""What JSON calls whitespace, no more: a no-break space or a byte order mark is an error."""

_REACH = re.compile(r'(?:[^"<\\]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^{}\[\]]+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
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
    try:
        value, end = _SCAN(text, start)
    except StopIteration as stop:
        return _fault(text, start, stop.value, "Expecting value")
    except json.JSONDecodeError as error:
        return _fault(text, start, error.pos, error.msg)
    except RecursionError:
        return JsonFault("too_deep", _TOO_DEEP, start, reach(text, start))
    except ValueError as error:
        return JsonFault("invalid_json", str(error), start, reach(text, start))
    if _too_deep(text, start, end):
        return JsonFault("too_deep", _TOO_DEEP, start, reach(text, start))
    if not _encodable(value, text, start, end):
        return JsonFault("invalid_json", "a string holds half of a surrogate pair", start, reach(text, start))
    return value, end


def encodable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which neither a file nor a server can take."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def excerpt(text: str, start: int, end: int) -> str:
    """The beginning of text[start:end], quoted, for a message. What a message shows has to lie before the end of its
    item: what comes later may not be known yet."""
    return encode_basestring(text[start : min(start + 40, end)])


def near(text: str, position: int, end: int) -> str:
    """The text around a position and before `end`, quoted, for a message."""
    return excerpt(text, max(min(position, end) - 20, 0), end)


def _fault(text: str, start: int, position: int, reason: str) -> JsonFault:
    """What the decoder's error at `position` means."""
    # Outside of a string, and at no character that could be the end of the reach: no need to look for that.
    within = reason.startswith("Expecting") and text[position : position + 1] not in _AT_REACH
    end = position + 1 if within else reach(text, start)
    if _too_deep(text, start, min(position, end)):
        return JsonFault("too_deep", _TOO_DEEP, start, reach(text, start))
    if position >= end:
        if text.startswith('"', end):
            reason = "a string is opened and not closed"
            return JsonFault("invalid_json", reason, end, end, open_string=_CONTROL.search(text, end) is None)
        return JsonFault("invalid_json", "it ends too early", end, end)
    if reason.startswith("Invalid control character"):
        reason = "a string holds a raw line break or control character; write it as an escape such as \\n"
        return JsonFault("invalid_json", reason, position, max(text.rfind('"', start, position), start))
    if text.startswith(("}", "]"), position) and text[max(position - 64, start) : position].rstrip().endswith(","):
        reason = _TRAILING_COMMA
    return JsonFault("invalid_json", _REASONS.get(reason, reason.lower()), position, position)


_TOO_DEEP = f"objects and lists are nested more than {MAX_DEPTH} deep"
_TRAILING_COMMA = "a comma stands before the closing bracket"
_REASONS = {
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": _TRAILING_COMMA,
    "Illegal trailing comma before end of array": _TRAILING_COMMA,
    "Expecting value": "expected a JSON value",
    "Expecting ',' delimiter": "expected a comma or the closing brace",
    "Expecting ':' delimiter": "expected a colon after the key",
    "Invalid \\escape": "a backslash stands before a character that JSON can't escape; write it twice",
    "Invalid \\uXXXX escape": "after \\u four hexadecimal digits have to follow",
}

_AT_REACH = frozenset(("", '"', "<", "\\"))
_CONTROL = re.compile(r"[\x00-\x1f]")


def _too_deep(text: str, start: int, end: int) -> bool:
    """Whether text[start:end], JSON as far as it goes, is nested too deep."""
    if end - start <= MAX_DEPTH or text.count("{", start, end) + text.count("[", start, end) <= MAX_DEPTH:
        return False
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text[start:end]))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH


def _encodable(value: Any, text: str, start: int, end: int) -> bool:
    """A lone surrogate can come from the text itself or from an escape."""
    escaped = text.find("\\u", start, end) >= 0 and _SURROGATE.search(text, start, end)
    whole = text.isascii() or encodable(text[start:end])
    return whole and (not escaped or encodable(json.dumps(value, ensure_ascii=False)))


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40} is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER: Any = json.JSONDecoder(parse_float=_finite, parse_constant=_constant)
_SCAN = _DECODER.scan_once
