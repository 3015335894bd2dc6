"""The seven operators on exact and on approximate numbers, with bounds on their size.

Exact numbers are `int` and `Fraction` (an int wherever the value is whole). Everything irrational is an `mpf` of a
private mpmath context with `GUARD` decimal digits more than are ever shown. A sum of approximate numbers that cancels
down into these guard digits is 0, so that sqrt(2)*sqrt(8) - 4 is 0 and not 1e-28.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Any

from toolrl.errors import ToolError

Exact = int | Fraction
Number = Any
"""An `Exact`, or an mpf of the `BoundedArithmetic` that made it."""

GUARD = 16
_ROOTS = 64
"""Roots up to this one are tried exactly."""


def is_exact(value: Number) -> bool:
    """Whether the value is an int or a Fraction."""
    return isinstance(value, int | Fraction)


class BoundedArithmetic:
    """Operators on numbers of at most `max_digits` digits, approximate ones good to `precision` digits."""

    def __init__(self, precision: int, max_digits: int) -> None:
        self.precision = precision
        self.max_digits = max_digits
        self.max_bits = int(max_digits * math.log2(10)) + 1

    @cached_property
    def context(self) -> Any:
        """The private mpmath context. mpmath is imported for the first approximate number."""
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

        context = MPContext()
        context.dps = self.precision + GUARD
        return context

    def bounded(self, value: Number) -> Number:
        """The value, an int where it is known to be whole. Raises ToolError where it is too large or too small."""
        if is_exact(value):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            value = value.numerator if value.denominator == 1 else value
        else:
            bits = abs(self.context.mag(value)) if value else 0
            value = value or 0
        if bits > self.max_bits:
            raise self.too_large()
        return value

    def too_large(self) -> ToolError:
        """The error for a number that is out of bounds."""
        return ToolError(f"A number gets too large or too small: at most {self.max_digits} digits are kept.")

    # Approximate numbers.

    def approximate(self, value: Number) -> Any:
        """The value as an mpf."""
        return self.context.mpf(value.numerator) / value.denominator if is_exact(value) else value

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
            return math.floor(value)
        near = self.nearest(value)
        return near if self.is_noise(value - near, max(1, abs(near))) else int(self.context.floor(value))

    # Operators.

    def add(self, left: Number, right: Number) -> Number:
        """left + right."""
        if is_exact(left) and is_exact(right):
            return self.bounded(left + right)
        first, second = self.approximate(left), self.approximate(right)
        total = first + second
        return 0 if self.is_noise(total, max(abs(first), abs(second))) else self.bounded(total)

    def subtract(self, left: Number, right: Number) -> Number:
        """left - right."""
        return self.add(left, -right)

    def multiply(self, left: Number, right: Number) -> Number:
        """left · right."""
        if not (is_exact(left) and is_exact(right)):
            left, right = self.approximate(left), self.approximate(right)
        return self.bounded(left * right)

    def divide(self, left: Number, right: Number) -> Number:
        """left / right. Raises ToolError for a zero divisor."""
        if right == 0:
            raise ToolError("Division by zero.")
        if is_exact(left) and is_exact(right):
            return self.bounded(Fraction(left) / right)
        return self.bounded(self.approximate(left) / self.approximate(right))

    def floor_divide(self, left: Number, right: Number) -> Number:
        """The floor of left / right."""
        return self.floor(self.divide(left, right))

    def modulo(self, left: Number, right: Number) -> Number:
        """left − right · ⌊left / right⌋: has the sign of the divisor."""
        return self.subtract(left, self.multiply(right, self.floor_divide(left, right)))

    def power(self, base: Number, exponent: Number) -> Number:
        """base to the exponent, exact where the result is rational. Raises ToolError where it isn't real, and by an
        estimate of its size before it is calculated."""
        if base == 0:
            if exponent < 0:
                raise ToolError("Division by zero: 0 to a negative power.")
            return 1 if exponent == 0 else 0
        whole = isinstance(exponent, int)
        if base < 0 and not whole:
            raise ToolError("A negative number to a power that isn't whole has no real value.")
        if is_exact(base) and is_exact(exponent):
            root = self._exact_root(base, exponent.denominator)
            if root is not None:
                return self._whole_power(root, exponent.numerator)
        number, power = self.approximate(base), self.approximate(exponent)
        if abs(self.context.log(abs(number), 2) * power) > self.max_bits:
            raise self.too_large()
        return self.bounded(number ** (exponent if whole else power))

    def _whole_power(self, base: Exact, exponent: int) -> Number:
        # |base|**|exponent| has at least (bits − 1)·|exponent| bits in its larger part.
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if (bits - 1) * abs(exponent) > self.max_bits:
            raise self.too_large()
        if base in (1, -1):
            return int(base) ** (exponent % 2)
        return self.bounded(Fraction(base) ** exponent)

    def _exact_root(self, value: Exact, degree: int) -> Exact | None:
        """The degree-th root where it is rational, else None; of a value ≥ 0 where the degree isn't 1."""
        if degree == 1:
            return value
        if degree > _ROOTS:
            return None
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        with self.context.workprec(bits // degree + 32):
            roots = [int(self.context.nint(self.context.root(part, degree))) for part in value.as_integer_ratio()]
        found = Fraction(*roots) if roots[1] else None
        return found if found is not None and found**degree == value else None
