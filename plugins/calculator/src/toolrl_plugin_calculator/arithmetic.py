"""The seven operators on exact and on approximate numbers, with bounds on their size.

Exact numbers are `int` and `Fraction` (an int wherever the value is whole). Everything irrational is an `mpf` of a
private mpmath context with `GUARD` decimal digits more than are ever shown. A sum of approximate numbers that cancels
down into these guard digits is 0, so that sqrt(2)*sqrt(8) - 4 is 0 and not 1e-28.

mpmath is imported when the first approximate number is made, so plain arithmetic costs no import.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Any

from toolrl.errors import ToolError

Exact = int | Fraction
Number = Any
"""An `Exact`, or an mpf of the `Arithmetic` that made it."""

GUARD = 16
_BITS_PER_DIGIT = math.log2(10)
_ROOTS = 64
"""Roots up to this one are tried exactly."""


def is_exact(value: Number) -> bool:
    """Whether the value is an int or a Fraction."""
    return type(value) is int or type(value) is Fraction


def simplest(value: Exact) -> Exact:
    """The same value, an int where it is whole."""
    return value.numerator if value.denominator == 1 else value


class Arithmetic:
    """Operators on numbers of at most `max_digits` digits, approximate ones good to `precision` digits."""

    def __init__(self, precision: int, max_digits: int) -> None:
        self.precision = precision
        self.max_digits = max_digits
        self.max_bits = int(max_digits * _BITS_PER_DIGIT) + 1

    @cached_property
    def context(self) -> Any:
        """The private mpmath context."""
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

        context = MPContext()
        context.dps = self.precision + GUARD
        return context

    # Bounds.

    def bounded(self, value: Number) -> Number:
        """The value itself, if it isn't too large. Raises ToolError."""
        if type(value) is int:
            if value.bit_length() > self.max_bits:
                raise self.too_large()
            return value
        if type(value) is Fraction:
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > self.max_bits:
                raise self.too_large()
            return value
        if value and abs(self.context.mag(value)) > self.max_bits:
            raise self.too_large()
        return value

    def too_large(self) -> ToolError:
        """The error for a number that is out of bounds."""
        return ToolError(f"A number gets too large or too small: at most {self.max_digits} digits are kept.")

    # Approximate numbers.

    def approximate(self, value: Number) -> Any:
        """The value as an mpf."""
        if not is_exact(value):
            return value
        return self.context.mpf(value.numerator) / value.denominator

    def is_noise(self, value: Any, scale: Any) -> bool:
        """Whether |value| is within the guard digits of a calculation with numbers as large as `scale`."""
        return bool(abs(value) < self.context.mpf(10) ** -(self.precision + GUARD // 2) * abs(scale))

    def nearest(self, value: Any) -> int:
        """The whole number nearest to an mpf. Raises ToolError where its digits aren't known that far."""
        if self.context.mag(value) > self.context.prec - 8:
            raise ToolError(
                f"The value isn't known to its last whole digit: it is approximate, {self.precision} digits."
            )
        return int(self.context.nint(value))

    def floor(self, value: Number) -> int:
        """The greatest whole number that isn't above the value."""
        if is_exact(value):
            whole: int = math.floor(value)
            return whole
        near = self.nearest(value)
        if self.is_noise(value - near, max(1, abs(near))):
            return near
        return int(self.context.floor(value))

    # Operators.

    def add(self, left: Number, right: Number) -> Number:
        """left + right."""
        if is_exact(left) and is_exact(right):
            return self.bounded(simplest(left + right))
        first, second = self.approximate(left), self.approximate(right)
        total = first + second
        return 0 if self.is_noise(total, max(abs(first), abs(second))) else self.bounded(total)

    def subtract(self, left: Number, right: Number) -> Number:
        """left - right."""
        return self.add(left, -right)

    def multiply(self, left: Number, right: Number) -> Number:
        """left · right."""
        if is_exact(left) and is_exact(right):
            return self.bounded(simplest(left * right))
        return self.bounded(self.approximate(left) * self.approximate(right))

    def divide(self, left: Number, right: Number) -> Number:
        """left / right. Raises ToolError for a zero divisor."""
        if right == 0:
            raise ToolError("Division by zero.")
        if is_exact(left) and is_exact(right):
            return self.bounded(simplest(Fraction(left) / right))
        return self.bounded(self.approximate(left) / self.approximate(right))

    def floor_divide(self, left: Number, right: Number) -> Number:
        """The floor of left / right."""
        return self.floor(self.divide(left, right))

    def modulo(self, left: Number, right: Number) -> Number:
        """left − right · ⌊left / right⌋: has the sign of the divisor."""
        return self.subtract(left, self.multiply(right, self.floor_divide(left, right)))

    def power(self, base: Number, exponent: Number) -> Number:
        """base to the exponent, exact where the result is rational. Raises ToolError where it isn't real."""
        if base == 0:
            if exponent < 0:
                raise ToolError("Division by zero: 0 to a negative power.")
            return 1 if exponent == 0 else 0
        if type(exponent) is int:
            return self._whole_power(base, exponent)
        if base < 0:
            raise ToolError("A negative number to a power that isn't whole has no real value.")
        if is_exact(base) and is_exact(exponent):
            root = self.exact_root(base, exponent.denominator)
            if root is not None:
                return self._whole_power(root, exponent.numerator)
        return self._approximate_power(base, exponent)

    def _whole_power(self, base: Number, exponent: int) -> Number:
        if not is_exact(base):
            return self._approximate_power(base, exponent)
        if base in (1, -1):
            return 1 if base == 1 or exponent % 2 == 0 else -1
        # |base|**|exponent| has at least (bits − 1)·|exponent| bits in its larger part.
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if (bits - 1) * abs(exponent) > self.max_bits:
            raise self.too_large()
        return self.bounded(simplest(Fraction(base) ** exponent if exponent < 0 else base**exponent))

    def _approximate_power(self, base: Number, exponent: Number) -> Number:
        number, power = self.approximate(base), self.approximate(exponent)
        if abs(self.context.log(abs(number), 2) * power) > self.max_bits:
            raise self.too_large()
        return self.bounded(number**exponent if type(exponent) is int else number**power)

    def exact_root(self, value: Exact, degree: int) -> Exact | None:
        """The degree-th root of a value ≥ 0 where it is rational, else None."""
        if degree == 1:
            return value
        if degree > _ROOTS:
            return None
        top, bottom = _whole_root(value.numerator, degree), _whole_root(value.denominator, degree)
        if top is None or bottom is None:
            return None
        return simplest(Fraction(top, bottom))


def _whole_root(value: int, degree: int) -> int | None:
    """The whole root of value ≥ 0, or None. Newton's method from above, which ends at the floor of the root."""
    if degree == 2:
        guess = math.isqrt(value)
    elif value < 2:
        guess = value
    else:
        guess = 1 << -(-value.bit_length() // degree)
        while True:
            better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
            if better >= guess:
                break
            guess = better
    return guess if guess**degree == value else None
