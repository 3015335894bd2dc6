"""Writes a number as the model reads it: never a float's noise, never `1E+3`, never `-0`.

- whole numbers and decimals that end are written in full;
- other rationals are rounded to `precision` significant digits, but never shorter than their whole part;
- approximate numbers are rounded to `precision` significant digits;
- a rounded number far from 1 is written as `1.5e-20`, a form that the calculator reads too.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
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
    if exact:
        places = _decimal_places(fraction.denominator)
        if places is not None and places <= max_digits:
            return _in_full(fraction, places)
    return _rounded(fraction, precision, whole_part_in_full=exact)


def _from_mpf(value: Number) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    mantissa = int(-mantissa if sign else mantissa)
    return Fraction(mantissa << exponent) if exponent >= 0 else Fraction(mantissa, 1 << -exponent)


def _decimal_places(denominator: int) -> int | None:
    """How many decimals a fraction with this denominator has; None where they don't end."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest //= 5
        fives += 1
    return max(twos, fives) if rest == 1 else None


def _in_full(value: Fraction, places: int) -> str:
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _rounded(value: Fraction, precision: int, *, whole_part_in_full: bool) -> str:
    if value == 0:
        return "0"
    digits = precision
    if whole_part_in_full:
        digits = max(precision, len(str(abs(value.numerator) // value.denominator)))
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6)
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    exponent = quotient.adjusted()
    if _SMALLEST_PLAIN <= exponent < max(digits, 15):
        text = f"{quotient:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa = f"{quotient.scaleb(-exponent, context):f}"
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{exponent}"
