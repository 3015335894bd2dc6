"""The syntax: its words and tags, the patterns that find them, and how a call is written."""

from __future__ import annotations

import functools
import re

PYTHON_OPEN, PYTHON_CLOSE = "<python>", "</python>"
THINK_CLOSE = "</think>"
BACKTICKS, TILDES = "```", "~~~"

ARGUMENTS = {"python": "code", "calculator": "expression"}
"""The tools that can be called, and the one argument of each."""

PYTHON_FORM = f"Write code as\n{BACKTICKS}python\nCODE\n{BACKTICKS}"

STOPS = (BACKTICKS, TILDES, PYTHON_CLOSE)
"""What ends generation in content, besides the end markers of tools. A fence that opens can't be told from one that
closes until it is there."""

_RUN = r"(?:(?<!`)`{3,}+|(?<!~)~{3,}+)"
_WORD = r"(?i:python3?|py)"
_ATTRIBUTES = r"(?:[ \t]++\{[^{}\n]*+\})?+"
PYTHON_TAG = r"</?(?i:python)>"
OPENING_TAG = r"<(?i:python|calculator)>"
FENCE_AT_LINE = rf"[ \t]*+{_RUN}[ \t]*+{_WORD}{_ATTRIBUTES}[ \t\r]*+(?=\n|\Z)"
"""The line that opens a call's fence, from its start on."""
_FENCE = rf"^{FENCE_AT_LINE}|{_RUN}[ \t]*+{_WORD}[ \t\r]*+(?=\n|\Z)"
"""The same, also in the middle of a line that ends right after the word."""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE | re.ASCII)


MARKS = _compile(rf"^[ \t]*+{_RUN}|{_RUN}|{PYTHON_TAG}|<think>")
"""What means something in content, besides tools' markers; a run of backticks or tildes is taken whole."""
OPENERS = _compile(rf"{OPENING_TAG}|{_FENCE}")
"""What begins a call, in a text that is at its end."""
CALL_INFO = re.compile(rf"[ \t]*+{_WORD}{_ATTRIBUTES}[ \t\r]*+", re.ASCII)
"""The whole info string of a fence at the start of a line that opens a call."""
CALL_WORD = re.compile(rf"[ \t]*+{_WORD}(?!\S)", re.ASCII)
"""Its first word alone."""
MIDLINE_CALL_INFO = re.compile(rf"[ \t]*+{_WORD}[ \t\r]*+", re.ASCII)
MIDLINE_INFO = re.compile(r"[\w+#.-]*+[ \t\r]*+")
"""The info string of a fence in the middle of a line: without a second word, or it is prose."""
LINE_OR_RUN = {char: re.compile(rf"\n|{char}{{3,}}+") for char in "`~"}


@functools.lru_cache(maxsize=64)
def fence_line(char: str, length: int = 3) -> re.Pattern[str]:
    """A line that begins with a run of at least so many characters."""
    return re.compile(rf"^(?P<indent>[ \t]*+)(?P<run>{char}{{{length},}}+)(?P<info>[^\n]*+)", re.MULTILINE)


def width(indentation: str) -> int:
    """Columns of white space, a tab reaching to the next multiple of four."""
    return len(indentation.expandtabs(4))
