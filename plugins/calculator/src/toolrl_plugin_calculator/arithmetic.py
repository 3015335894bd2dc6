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


def is_exact(*values: Number) -> bool:
    """Whether all values are ints or Fractions."""
    return all(isinstance(value, int | Fraction) for value in values)


def _bits(value: Exact) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


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
        exact = is_exact(value)
        if value and (_bits(value) if exact else abs(self.context.mag(value))) > self.max_bits:
            raise self.too_large()
        return value.numerator if exact and value.denominator == 1 else value or 0

    def too_large(self) -> ToolError:
        """The error for a number that is out of bounds."""
        return ToolError(f"A number gets too large or too small: at most {self.max_digits} digits are kept.")

    # Approximate numbers.

    def approximate(self, value: Number) -> Any:
        """The value as an mpf."""
        return self.context.convert(value)

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
            return math.floor(Fraction(value))
        near = self.nearest(value)
        return near if self.is_noise(value - near, max(1, abs(near))) else int(self.context.floor(value))

    # Operators.

    def _alike(self, left: Number, right: Number) -> tuple[Number, Number]:
        return (left, right) if is_exact(left, right) else (self.approximate(left), self.approximate(right))

    def add(self, left: Number, right: Number) -> Number:
        """left + right."""
        left, right = self._alike(left, right)
        total = left + right
        noise = not is_exact(total) and self.is_noise(total, max(abs(left), abs(right)))
        return 0 if noise else self.bounded(total)

    def subtract(self, left: Number, right: Number) -> Number:
        """left - right."""
        return self.add(left, -right)

    def multiply(self, left: Number, right: Number) -> Number:
        """left · right."""
        left, right = self._alike(left, right)
        return self.bounded(left * right)

    def divide(self, left: Number, right: Number) -> Number:
        """left / right. Raises ToolError for a zero divisor."""
        if right == 0:
            raise ToolError("Division by zero.")
        left, right = self._alike(left, right)
        return self.bounded(Fraction(left) / right if is_exact(left) else left / right)

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
            return int(exponent == 0)
        if base < 0 and not isinstance(exponent, int):
            raise ToolError("A negative number to a power that isn't whole has no real value.")
        root = self._exact_root(base, exponent.denominator) if is_exact(base, exponent) else None
        if root is not None:
            base, exponent = Fraction(root), exponent.numerator
            # |base|**|exponent| has at least (bits − 1)·|exponent| bits in its larger part.
            bits = (_bits(base) - 1) * abs(exponent)
        else:
            base = self.approximate(base)
            exponent = exponent if isinstance(exponent, int) else self.approximate(exponent)
            bits = abs(self.context.log(abs(base), 2) * exponent)
        if bits > self.max_bits:
            raise self.too_large()
        return self.bounded(base**exponent)

    def _exact_root(self, value: Exact, degree: int) -> Exact | None:
        """The degree-th root where it is rational, else None; of a value ≥ 0 where the degree isn't 1."""
        if degree == 1:
            return value
        if degree > _ROOTS:
            return None
        with self.context.workprec(_bits(value) // degree + 32):
            above, below = (int(self.context.nint(self.context.root(n, degree))) for n in value.as_integer_ratio())
        found = Fraction(above, below or 1)
        return found if found**degree == value else None
