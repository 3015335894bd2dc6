"""Where a <python> block ends: at the first tag outside of a string.

A string is known by its quotes if it is closed on its line; a quote that isn't, and one in a comment, mean nothing.
"""

from __future__ import annotations

import re
from typing import Literal

from toolrl_plugin_tir.syntax import FENCE_AT_LINE, OPENING_TAG, PYTHON_CLOSE, PYTHON_TAG

LONGEST_STRING = 300
"""Characters of a string that is looked at for tags, so that a line full of quotes takes linear time."""


def _outside_of_strings(tag: str) -> re.Pattern[str]:
    """Finds strings, comments, quotes that close no string, and what `tag` matches outside of all these."""
    strings = "|".join(rf"{quote}(?:[^{quote}\\\n]|\\[^\n]){{0,{LONGEST_STRING}}}+{quote}" for quote in "\"'")
    comment = rf"#(?:[^\n<]++|<(?!{PYTHON_TAG[1:]}|{OPENING_TAG[1:]}))*+"
    return re.compile(rf"{strings}|{comment}|(?P<quote>[\"'])|(?P<tag>{tag})", re.ASCII | re.MULTILINE)


_TAGS = _outside_of_strings(PYTHON_TAG)
_OPENERS = _outside_of_strings(rf"{OPENING_TAG}|^{FENCE_AT_LINE}")


def find_tag(text: str, start: int, final: bool) -> re.Match[str] | Literal["wait"] | None:
    """The first `<python>` or `</python>` from `start` on; `wait` where only more text can tell."""
    found = _find(_TAGS, text, start, len(text), final)
    return "wait" if found is None and not final else found


def find_opener(text: str, start: int, end: int, final: bool) -> int | Literal["wait"] | None:
    """Where in text[start:end], the code of a block that isn't closed, the first opener of a call begins."""
    found = _find(_OPENERS, text, start, end, final)
    return found.start() if isinstance(found, re.Match) else found


def _find(
    pattern: re.Pattern[str], text: str, start: int, end: int, final: bool
) -> re.Match[str] | Literal["wait"] | None:
    for found in pattern.finditer(text, start, end):
        if found.lastgroup == "tag":
            return found
        if found.lastgroup == "quote" and not final and text.find("\n", found.start()) < 0:
            return "wait"  # The string may be closed by what comes.
    return None


def holds_close(body: str) -> bool:
    """Whether a closing tag, as text of a string, stands in the last line of a block that isn't closed: then it is
    what generation stopped on."""
    body = body.rstrip()
    return PYTHON_CLOSE in body[body.rfind("\n") + 1 :]
