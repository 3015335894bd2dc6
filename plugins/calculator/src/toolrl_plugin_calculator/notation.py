"""How models write arithmetic, brought into Python's notation, and how they read a number.

`1,234 × 5²`, `20% of 50` and `5! = ?` are read; `50% + 3` can be read in two ways, so it is refused with both written
out. What is shown is never a float's noise, never `1E+3`, never `-0`:

- whole numbers of up to 200 digits, and decimals that end within 64 digits, are written in full;
- other rationals are rounded to `precision` significant digits, but never shorter than their whole part;
- approximate numbers are rounded to `precision` significant digits;
- a rounded number far from 1 is written as `1.5e-20`, a form that is read, too;
- `≈` stands before a number that would be whole, or a decimal that ends, but has too many digits.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact
from fractions import Fraction

from toolrl.errors import ToolError
from toolrl_plugin_calculator.arithmetic import Number

LONGEST_WHOLE, LONGEST_DECIMAL = 200, 64
"""Significant digits of a whole number, and of a decimal that ends, which are written in full."""
_SMALLEST_PLAIN = -10
"""Decimal exponent from which on a rounded number is written without an exponent."""
_CHARACTERS = str.maketrans(
    {
        "×": "*", "⋅": "*", "·": "*", "∗": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "π": " pi ",
        "^": "**", "²": "**2", "³": "**3", "\n": " ", "\r": " ", "\t": " ", "\xa0": " ", "\u202f": " ",
        "≈": " ",
    }
)  # fmt: skip
_NUMBER = r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_UNCLEAR = re.compile(_NUMBER + r"\s*%\s*(?=[+-])")
_REWRITES = (
    (re.compile(r"\bmath\.(?=[A-Za-z])"), ""),  # math.sqrt(2)
    (re.compile(r"\$\s*(?=[\d.])"), ""),  # $5
    (re.compile(r"\s*=\s*\??\s*\Z"), ""),  # 12*34 = ?
    (re.compile(r"(?<=[\d)])\s+[xX]\s+(?=[\d(.$])"), " * "),  # 12 x 34
    (re.compile(r"(?<![\w.])0+(?=\d)"), ""),  # 007
    (re.compile(_NUMBER + r"\s*%\s*of\b"), r"(\1/100)*"),  # 20% of 50
    (re.compile(_NUMBER + r"\s*%(?=\s*(?:$|[)*/,]))"), r"(\1/100)"),  # 15%; before an operand it is the remainder
    (re.compile(r"(?<![\w.])(\d+)\s*!(?!=)"), r"factorial(\1)"),  # 5!
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ZERO_GROUP = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})*,0\d\d(?![\d.])(?:,\d{3})*")
_IDENTIFIER_END = re.compile(r"[A-Za-z_]\w*\s*\Z")


def to_python(text: str) -> str:
    """The expression in Python's notation, on one line; empty for a blank one. Raises ToolError.

    What isn't understood is left as it is, for the parser to refuse; what is left outside ASCII is refused here, as
    `ast` counts columns in bytes.
    """
    text = text.translate(_CHARACTERS).strip()
    for character in text:
        if not character.isascii():
            raise ToolError(f"The character {character!r} isn't understood: write plain digits and operators.")
    text = _join_thousands(text)
    unclear = _UNCLEAR.search(text)
    if unclear:
        number = unclear[1]
        raise ToolError(
            f"'{number}%' before a sign is unclear. Write ({number}/100) for per cent, or the right side in "
            f"parentheses, {number} % (…), for the remainder."
        )
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _join_thousands(text: str) -> str:
    """Take the commas out of `1,234`, except if a comma separates a function's arguments. Raises ToolError for
    `max(1,000, 2)`: no argument is written 000."""
    pieces: list[str] = []
    calls: list[bool] = []  # for each open parenthesis: does it belong to a function?
    for piece in re.split(r"([()])", text):
        if piece == "(":
            calls.append(bool(pieces and _IDENTIFIER_END.search(pieces[-1])))
        elif piece == ")":
            del calls[-1:]
        elif not any(calls):
            piece = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), piece)
        elif grouped := _ZERO_GROUP.search(piece):
            raise ToolError(
                f"{grouped.group()!r} is unclear: inside a function's parentheses a comma separates arguments. Write "
                f"{grouped.group().replace(',', '')} for the number."
            )
        pieces.append(piece)
    return "".join(pieces)


def show(value: Number, precision: int, *, rounded: bool = False) -> str:
    """The value as text; `rounded` says that an approximate one has lost digits of an exact number."""
    if not isinstance(value, int | Fraction):
        sign, mantissa, exponent, _ = value._mpf_
        text = _rounded((-1) ** sign * int(mantissa) * Fraction(2) ** exponent, precision)
        return f"≈ {text}" if rounded else text
    whole_digits = len(str(abs(value.numerator) // value.denominator))
    if type(value) is int and whole_digits <= LONGEST_WHOLE:
        return str(value)
    digits = max(precision, whole_digits) if whole_digits <= LONGEST_WHOLE else precision
    if type(value) is int or _ends(value):
        context = Context(prec=max(whole_digits, LONGEST_DECIMAL))
        in_full = context.divide(Decimal(value.numerator), Decimal(value.denominator))
        if not context.flags[Inexact] and whole_digits <= LONGEST_WHOLE and in_full.adjusted() >= -LONGEST_DECIMAL:
            return f"{in_full:f}"
        text = _rounded(Fraction(value), digits)
        return text if Fraction(text) == value else f"≈ {text}"
    return _rounded(value, digits)


def _ends(value: Fraction) -> bool:
    """Whether the decimal ends: its denominator has no prime factors but 2 and 5."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def _rounded(value: Fraction, digits: int) -> str:
    context = Context(prec=digits)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context)
    if _SMALLEST_PLAIN <= rounded.adjusted() < max(digits, 15):
        return f"{rounded:f}"
    return f"{rounded:e}".replace("e+", "e")
