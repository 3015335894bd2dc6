"""JSON with the mistakes that small models make, mended: trailing commas, single quotes, raw line breaks in strings,
and Python's True, False and None, which come along with single quotes.

Method: the text is cut into tokens up to the end of its first value, each token is written as JSON writes it, and what
comes out is read strictly. Nothing is guessed beyond that: a missing quote or bracket stays an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolrl_common.parsing.jsonvalue import MAX_DEPTH, JsonFault, read_json

MAX_LENGTH = 65536
"""Characters that are looked at; what is longer isn't mended."""
MAX_MENDED = 4 * MAX_LENGTH
"""Characters of one turn that a parser tries to mend: what comes after so many is read as it stands."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<double>"(?:[^"\\]++|\\.)*+")|(?P<single>'(?:[^'\\]++|\\.)*+')"""
    r"""|(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<colon>:)|(?P<word>[A-Za-z0-9+.\-]+)""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}
_BROKEN_ESCAPE = re.compile(r"\\[\x00-\x1f]")
_SINGLE = re.compile(r"\\'|\"|\\.", re.DOTALL)


def mend_json(text: str, start: int = 0) -> tuple[Any, int] | None:
    """The value that begins at `start` and the index after it. None where it can't be mended."""
    written: list[str] = []
    depth, at, limit = 0, start, min(start + MAX_LENGTH, len(text))
    while at < limit:
        token = _TOKEN.match(text, at, limit)
        if token is None:
            return None
        at, kind, source = token.end(), token.lastgroup, token.group()
        if kind == "space":
            continue
        if kind == "open":
            depth += 1
            if depth > MAX_DEPTH:
                return None
        elif kind == "close":
            depth -= 1
            if len(written) > 1 and written[-1] == "," and written[-2] not in ("{", "["):
                written.pop()
        written.append(_as_json(kind, source))
        if depth <= 0:
            return _strict(" ".join(written), at)
    return None


def _as_json(kind: str | None, source: str) -> str:
    if kind in ("double", "single") and _BROKEN_ESCAPE.search(source):
        return source  # a backslash before a raw line break could mean anything: this stays an error
    if kind == "double":
        return source.translate(_ESCAPES)
    if kind == "single":
        return '"' + _SINGLE.sub(_requoted, source[1:-1]).translate(_ESCAPES) + '"'
    return _WORDS.get(source, source)


def _requoted(match: re.Match[str]) -> str:
    """Inside single quotes: `\\'` needs no backslash any more, `"` needs one, other escapes stay."""
    return {"\\'": "'", '"': '\\"'}.get(match.group(), match.group())


def _strict(written: str, end: int) -> tuple[Any, int] | None:
    read = read_json(written)
    if isinstance(read, JsonFault) or read[1] != len(written):
        return None
    return read[0], end
