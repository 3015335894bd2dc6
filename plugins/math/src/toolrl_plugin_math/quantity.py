"""Numbers in text, compared as numbers: 220000.0 equals 220000, and `$1,234` equals 1234."""

from __future__ import annotations

import math
import re
from fractions import Fraction

# A sign or a currency mark belongs to the number it touches; thousands commas only where all groups have three digits.
_NUMBER = re.compile(r"[-−]?\$?[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)")
_STRIP = str.maketrans({",": None, "$": None, "−": "-"})
MARK = "####"


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None where there is none. `$` and `%` beside it are no part of the value."""
    found = None
    for match in _NUMBER.finditer(text):
        found = match
    return None if found is None else _value(text, found)


def first_number(text: str) -> Fraction | None:
    """The first number of a text; None where there is none."""
    found = _NUMBER.search(text)
    return None if found is None else _value(text, found)


def marked_number(text: str) -> Fraction | None:
    """The number after the last `####`, on one line with it or on the next; None where there is none."""
    _, mark, after = text.rpartition(MARK)
    return first_number(after.strip().partition("\n")[0]) if mark else None


def stated_number(answer: object) -> Fraction | None:
    """The number that an answer or a ground truth states: a number, its text, or a solution that ends with `#### N`."""
    if isinstance(answer, int | float):
        return Fraction(str(answer)) if math.isfinite(answer) else None
    text = str(answer)
    return marked_number(text) if MARK in text else last_number(text)


def _value(text: str, match: re.Match[str]) -> Fraction | None:
    written = match.group().translate(_STRIP)
    # In `16-3` the dash is an operator, in `= -3` a sign.
    before = text[match.start() - 1 : match.start()]
    if before.isalnum() or before == ")":
        written = written.lstrip("-")
    try:
        return Fraction(written)
    except ValueError:
        return None  # more digits than Python reads, or `-$-5`
