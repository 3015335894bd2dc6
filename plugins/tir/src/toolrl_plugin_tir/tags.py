"""Where a <python> block ends: at the first tag outside of a string.

A string is known by its quotes if it is closed on its line; a quote that isn't, and one in a comment, mean nothing. So
each line is judged by itself, and what was found for the lines behind one opening tag holds for the next one too. Only
the rest of a tag's own line has to be read again, and there strings are looked for in its first `OWN_LINE` characters.

`Walk` steps over strings, comments and everything else that holds no tag in one match of a pattern without
backtracking; it stops at a tag, or at a quote whose line isn't complete or holds a tag behind it.
"""

from __future__ import annotations

import re
from typing import Literal

from toolrl_plugin_tir.syntax import FENCE_AT_LINE, OPENING_TAG, PYTHON_CLOSE, PYTHON_TAG

OWN_LINE = 2000
Found = re.Match[str] | Literal["wait"] | None


class Walk:
    """Finds what `tag` matches outside of strings; `line`, where given, is looked for at the start of lines."""

    def __init__(self, tag: str, line: str | None = None) -> None:
        other = rf"<(?!{tag.removeprefix('<')})"
        comment = rf"#(?:[^\n<]++|{other})*+"
        strings = {quote: rf"{quote}(?:[^{quote}\\\n]++|\\[^\n])*+{quote}" for quote in "\"'"}
        # From a quote that closes no string to the end of its line: the other one may still do so, or mean nothing too.
        without = rf"(?:[^#<\n]++|{comment}|{other})*+"
        rests = [
            rf"{quote}(?:[^{second}#<\n]++|{strings[second]}|{comment}|{other})*+(?:{second}{without})?+"
            for quote, second in ("\"'", "'\"")
        ]
        rest = rf"(?:{rests[0]}|{rests[1]})"
        newline = rf"\n(?!{line})" if line else r"\n"
        steps = [r"[^\"'#<\n]++", *strings.values(), comment, other, newline, rf"{rest}(?=\n)"]
        self._steps = re.compile(f"(?:{'|'.join(steps)})*+", re.ASCII)
        self._rest = re.compile(rest, re.ASCII)
        self._tag = re.compile(tag, re.ASCII)
        self._line = re.compile(rf"\n(?={line})", re.ASCII) if line else None

    def find(self, text: str, start: int, end: int, final: bool) -> Found:
        """The first match in text[start:end]; `wait` where only more text can tell."""
        at = self._end(self._steps, text, start, end)
        if text[at : at + 1] in ("'", '"') and at < end:
            if not final and end == len(text) and text.find("\n", at) < 0:
                return "wait"
            at = self._end(self._rest, text, at, end)
        tag = self._tag.match(text, at, end)
        if tag is None and self._line is not None:
            tag = self._line.match(text, at, end)
        return tag

    @staticmethod
    def _end(pattern: re.Pattern[str], text: str, start: int, end: int) -> int:
        match = pattern.match(text, start, end)
        return start if match is None else match.end()


_PYTHON = Walk(PYTHON_TAG)
_OPENERS = Walk(OPENING_TAG, FENCE_AT_LINE)
_PLAIN = re.compile(PYTHON_TAG, re.ASCII)


class PythonTags:
    """Finds tags in one text. To be asked for positions in rising order."""

    def __init__(self) -> None:
        self._from = self._upto = -1  # both begin a line; between them there is no tag
        self._tag: re.Match[str] | None = None  # the first tag behind

    def find(self, text: str, start: int, final: bool) -> Found:
        """The first tag outside of a string from `start` on, which is behind an opening tag; `wait` where only more
        text can tell."""
        newline = text.find("\n", start)
        line_end = len(text) if newline < 0 else newline
        limit = min(start + OWN_LINE, line_end)
        tag = _PYTHON.find(text, start, limit, final)
        if tag is None and limit < line_end:
            tag = _PLAIN.search(text, max(start, limit - len(PYTHON_CLOSE) + 1), line_end)
        if tag is not None or (newline < 0 and final):
            return tag
        return "wait" if newline < 0 else self._behind(text, newline + 1, final)

    def _behind(self, text: str, line: int, final: bool) -> Found:
        """The first tag from the line on that begins at `line`."""
        if not self._from <= line <= self._upto:
            self._from = self._upto = line
            self._tag = None
        if self._tag is not None:
            return self._tag
        found = _PYTHON.find(text, self._upto, len(text), final)
        if isinstance(found, re.Match):
            self._tag, self._upto = found, found.start()
            return found
        if not final:
            return "wait"
        self._upto = len(text)
        return None


def find_opener(text: str, start: int, end: int, final: bool) -> int | Literal["wait"] | None:
    """Where in text[start:end], the code of a block that isn't closed, the first opener of a call outside of a string
    begins."""
    found = _OPENERS.find(text, start, end, final)
    return found.start() + (found.group() == "\n") if isinstance(found, re.Match) else found


def holds_close(body: str) -> bool:
    """Whether a closing tag, as text of a string, stands in the last line of a block that isn't closed: then it is
    what generation stopped on."""
    body = body.rstrip()
    return PYTHON_CLOSE in body[body.rfind("\n") + 1 :]
