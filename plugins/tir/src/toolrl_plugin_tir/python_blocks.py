"""The code of a call: where a <python> block ends, and the code as it is run.

A block ends at the first tag outside of a string. A string is known by its quotes if it is closed on its line; a quote
that isn't, and one in a comment, mean nothing. Code loses the indentation of the fence around it, and empty lines at
its ends.
"""

from __future__ import annotations

import re
import textwrap
from typing import Literal

from toolrl_plugin_tir.syntax import CALL_INFO, FENCE_AT_LINE, OPENING_TAG, PYTHON_CLOSE, PYTHON_TAG, fence_line

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


_EMPTY_LINES = re.compile(r"(?:[ \t\r]*+\n)*+")


def clean(body: str, indent: int = 0) -> str:
    """The code between a fence's lines or between tags; `indent` columns are the fence's own. Empty if blank."""
    if not body.strip():
        return ""
    if indent:
        body = re.sub(rf"^[ \t]{{1,{min(indent, 1000)}}}+", "", body, flags=re.MULTILINE)
    start = _EMPTY_LINES.match(body).end()  # type: ignore[union-attr]  # it matches nothing, too
    end = body.find("\n", len(body.rstrip()))
    code = body[start : end if end >= 0 else len(body)].rstrip("\r")
    margin = len(code) - len(code.lstrip(" \t"))
    # dedent makes a pattern of the margin, which takes long where it is no margin any more.
    return textwrap.dedent(code) if 0 < margin <= 1000 else code


def unwrapped(body: str) -> str:
    """The body of a <python> block without the one fence that may stand around all of it."""
    fenced = body.strip()
    char = fenced[:1]
    opening = fence_line(char).match(fenced) if char in ("`", "~") else None
    if opening is None or (opening["info"].strip() and not CALL_INFO.fullmatch(opening["info"])):
        return body
    for line in fence_line(char, len(opening["run"])).finditer(fenced, opening.end()):
        if not line["info"].strip():
            return fenced[opening.end() : line.start()] if line.end() == len(fenced) else body
    return body
