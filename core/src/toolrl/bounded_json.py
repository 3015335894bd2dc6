"""JSON that others sent, with a bound on what reading it takes.

Reading holds Python's lock: neither the event loop nor another thread goes on meanwhile. A megabyte of text takes a
millisecond, a megabyte of empty lists a hundred. So a limit of bytes alone is none of time; this one is of values.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_CONTAINERS = 200_000
"""Maximum number of lists and objects. Frames of 210 × 160 pixels have 33,600 each."""
MOST_VALUES = 2_000_000
MOST_STRINGS = 500_000
"""Maximum number of strings of a text with so many brackets and commas that they have to be told from its strings'."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def loads(content: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError, also for more values than the limits and for one nested too deep."""
    check_size(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def check_size(content: bytes) -> None:
    """Raises ValueError if a JSON text holds more values than the limits, before it is read."""
    if _is_small(content):
        return
    # What stands in strings doesn't count: a text may be a table or a program.
    if content.count(b'"') - content.count(b'\\"') > 2 * MOST_STRINGS or not _is_small(_STRING.sub(b"", content)):
        raise ValueError(f"it holds more than {MOST_CONTAINERS:,} lists and objects, or {MOST_VALUES:,} values")


def _is_small(content: bytes) -> bool:
    containers = content.count(b"[") + content.count(b"{")
    return containers <= MOST_CONTAINERS and content.count(b",") <= MOST_VALUES
