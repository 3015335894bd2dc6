"""Writes a number as the model reads it: never a float's noise, never `1E+3`, never `-0`.

- whole numbers and decimals that end are written in full;
- other rationals are rounded to `precision` significant digits, but never shorter than their whole part;
- approximate numbers are rounded to `precision` significant digits;
- a rounded number far from 1 is written as `1.5e-20`, a form that the calculator reads too.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact
from fractions import Fraction

from toolrl_plugin_calculator.arithmetic import Number

_SMALLEST_PLAIN = -10
"""Decimal exponent from which on a rounded number is written without an exponent."""


def show(value: Number, precision: int, max_digits: int) -> str:
    """The value as text."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, Fraction):
        sign, mantissa, exponent, _ = value._mpf_
        return _rounded((-1) ** sign * int(mantissa) * Fraction(2) ** exponent, precision)
    whole_digits = len(str(abs(value.numerator) // value.denominator))
    context = Context(prec=whole_digits + max_digits)
    in_full = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return _rounded(value, max(precision, whole_digits)) if context.flags[Inexact] else f"{in_full:f}"


def _rounded(value: Fraction, digits: int) -> str:
    context = Context(prec=digits)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context)
    if _SMALLEST_PLAIN <= rounded.adjusted() < max(digits, 15):
        return f"{rounded:f}"
    return f"{rounded:e}".replace("e+", "e")
