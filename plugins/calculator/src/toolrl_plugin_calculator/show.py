"""Writes a number as the model reads it: never a float's noise, never `1E+3`, never `-0`.

- whole numbers and decimals that end are written in full;
- other rationals are rounded to `precision` significant digits, but never shorter than their whole part;
- approximate numbers are rounded to `precision` significant digits;
- a rounded number far from 1 is written as `1.5e-20`, a form that the calculator reads too.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact
from fractions import Fraction

from toolrl_plugin_calculator.arithmetic import Number

_SMALLEST_PLAIN = -10
"""Decimal exponent from which on a rounded number is written without an exponent."""


def show(value: Number, precision: int, max_digits: int) -> str:
    """The value as text."""
    if type(value) is int:
        return str(value)
    exact = type(value) is Fraction
    fraction = value if exact else _from_mpf(value)
    whole_digits = len(str(abs(fraction.numerator) // fraction.denominator)) if exact else 0
    if exact:
        quotient, rounded = _divided(fraction, whole_digits + max_digits)
        if not rounded and -quotient.as_tuple().exponent <= max_digits:  # type: ignore[operator]  # it is finite
            return f"{quotient:f}"
    return _rounded(fraction, max(precision, whole_digits))


def _from_mpf(value: Number) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    mantissa = int(-mantissa if sign else mantissa)
    return Fraction(mantissa << exponent) if exponent >= 0 else Fraction(mantissa, 1 << -exponent)


def _divided(value: Fraction, digits: int) -> tuple[Decimal, bool]:
    """The value to so many significant digits, and whether that left some out."""
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6)
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return quotient, bool(context.flags[Inexact])


def _rounded(value: Fraction, digits: int) -> str:
    if value == 0:
        return "0"
    quotient, _ = _divided(value, digits)
    exponent = quotient.adjusted()
    plain = _SMALLEST_PLAIN <= exponent < max(digits, 15)
    text = f"{quotient if plain else quotient.scaleb(-exponent, Context(prec=digits)):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text if plain else f"{text}e{exponent}"
