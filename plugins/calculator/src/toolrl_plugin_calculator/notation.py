"""Brings the ways in which models write arithmetic into Python's notation.

| written | read as |
|---|---|
| `×` `⋅` `·` `÷` `−` `–` `π` | `*` `*` `*` `/` `-` `-` `pi` |
| `^`, `²`, `³` | `**`, `**2`, `**3` |
| `12 x 34` with spaces around the x | `12 * 34` |
| `$5`, `007` | `5`, `7` |
| `1,234.5` outside a function's parentheses | `1234.5` |
| `15%` before an end, `)`, `,`, `*` or `/` | `(15/100)`; before an operand `%` is the remainder |
| `20% of 50` | `(20/100)*50` |
| `5!` | `factorial(5)` |
| `12*34=`, `12*34 = ?` | `12*34` |
| `math.sqrt(2)` | `sqrt(2)` |

`50% + 3` can be read in two ways, which differ, so it is refused with both ways written out.
"""

from __future__ import annotations

import re

from toolrl.errors import ToolError

_CHARACTERS = str.maketrans(
    {
        "×": "*", "⋅": "*", "·": "*", "∗": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "π": " pi ",
        "^": "**", "²": "**2", "³": "**3", "\n": " ", "\r": " ", "\t": " ", "\xa0": " ", "\u202f": " ",
    }
)  # fmt: skip
_NUMBER = r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=\d)")
_DOLLAR = re.compile(r"\$\s*(?=[\d.])")
_TIMES = re.compile(r"(?<=[\d)])\s+[xX]\s+(?=[\d(.$])")
_PERCENT_OF = re.compile(_NUMBER + r"\s*%\s*of\b")
_PERCENT_UNCLEAR = re.compile(_NUMBER + r"\s*%\s*(?=[+-])")
_PERCENT = re.compile(_NUMBER + r"\s*%(?=\s*(?:$|[)*/,]))")
_FACTORIAL = re.compile(r"(?<![\w.])(\d+)\s*!(?!=)")
_EQUALS = re.compile(r"\s*=\s*\??\s*\Z")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_MODULE = re.compile(r"\bmath\.(?=[A-Za-z])")
_IDENTIFIER_END = re.compile(r"[A-Za-z_]\w*\s*\Z")


def to_python(text: str) -> str:
    """The expression in Python's notation, on one line; empty for a blank one. Raises ToolError.

    What isn't understood is left as it is, for the parser to refuse; what is left outside ASCII is refused here, as
    `ast` counts columns in bytes.
    """
    text = text.translate(_CHARACTERS)
    for character in text:
        if not character.isascii():
            raise ToolError(f"The character {character!r} isn't understood: write plain digits and operators.")
    text = _MODULE.sub("", text.strip())
    text = _DOLLAR.sub("", text)
    text = _join_thousands(_EQUALS.sub("", text))
    text = _LEADING_ZEROS.sub("", _TIMES.sub(" * ", text))
    return _FACTORIAL.sub(r"factorial(\1)", _read_percent(text))


def _read_percent(text: str) -> str:
    text = _PERCENT_OF.sub(r"(\1/100)*", text)
    unclear = _PERCENT_UNCLEAR.search(text)
    if unclear:
        number = unclear.group(1)
        raise ToolError(
            f"'{number}%' before a sign is unclear. Write ({number}/100) for per cent, or the right side in "
            f"parentheses, {number} % (…), for the remainder."
        )
    return _PERCENT.sub(r"(\1/100)", text)


def _join_thousands(text: str) -> str:
    """Take the commas out of `1,234`, except where a comma separates a function's arguments."""
    pieces: list[str] = []
    calls: list[bool] = []  # for each open parenthesis: does it belong to a function?
    for piece in re.split(r"([()])", text):
        if piece == "(":
            calls.append(bool(pieces and _IDENTIFIER_END.search(pieces[-1])))
        elif piece == ")":
            del calls[-1:]
        elif not any(calls):
            piece = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), piece)
        pieces.append(piece)
    return "".join(pieces)
