"""The seven operators on exact and on approximate numbers, with bounds on their size.

Exact numbers are `int` and `Fraction` (an int wherever the value is whole). Everything irrational is an `mpf` of a
private mpmath context with `GUARD` decimal digits more than are ever shown. A sum of approximate numbers that cancels
down into these guard digits is 0, so that sqrt(2)*sqrt(8) - 4 is 0 and not 1e-28.

An exact number of more than `max_digits` digits is rounded to an approximate one: (1 + 0.05/365)**3650 is 1.65, but has
18,000 digits. `rounded` says so afterwards, and a sum that cancels is then an error.
"""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

from toolrl.errors import ToolError

Exact = int | Fraction
Number = Any
"""An `Exact`, or an mpf of the `BoundedArithmetic` that made it."""

GUARD = 16
_ROOTS = 64
"""Roots up to this one are tried exactly."""
RANGE = int(10**6 * math.log2(10))
"""Bits before the point, or zeros after it, that an approximate number may have on the way: a million digits."""


_contexts = threading.local()


def _context(digits: int) -> Any:
    """An mpmath context of so many decimal digits or a few more. mpmath is imported for the first approximate number.

    Each thread has its own, as functions of mpmath change the precision of their context for a while.
    """
    from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

    digits = -(-digits // 16) * 16  # A thread keeps few contexts, each of which takes milliseconds to make.
    found: dict[int, Any] = _contexts.__dict__
    if digits not in found:
        found[digits] = MPContext()
        found[digits].dps = digits
    return found[digits]


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
        self.rounded = False
        """Whether a number had too many digits to be kept exactly."""

    @property
    def context(self) -> Any:
        """The mpmath context of approximate numbers."""
        return _context(self.precision + GUARD)

    def bounded(self, value: Number) -> Number:
        """The value, an int if it is known to be whole; an exact one of too many digits is rounded. Raises ToolError if
        it is too large or too small."""
        if is_exact(value):
            if _bits(value) <= self.max_bits:
                return value.numerator if value.denominator == 1 else value
            value, self.rounded = self.approximate(value), True
        if value and abs(self.context.mag(value)) > RANGE:
            raise self.too_large()
        return value or 0

    def result(self, value: Number) -> Number:
        """The value of a whole expression. Raises ToolError if it has more than `max_digits` digits before the point,
        or zeros after it."""
        if not is_exact(value) and abs(self.context.mag(value)) > self.max_bits:
            about = self.context.nstr(value, self.precision, min_fixed=0, max_fixed=0).replace("e+", "e")
            raise self.too_large(f" It is about {about}.")
        return value

    def too_large(self, more: str = "") -> ToolError:
        """The error for a number that is out of bounds."""
        return ToolError(f"A number gets too large or too small: at most {self.max_digits} digits are kept.{more}")

    # Approximate numbers.

    def approximate(self, value: Number) -> Any:
        """The value as an mpf."""
        return +self.context.convert(value)

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
        if not is_exact(total):
            scale = max(abs(left), abs(right))
            if self.rounded and abs(total) < self.context.mpf(10) ** -(GUARD - 2) * scale:
                raise ToolError(
                    f"Too few digits are left of this difference: numbers of more than {self.max_digits} digits are "
                    f"rounded to {self.precision}. Write it with smaller numbers."
                )
            if self.is_noise(total, scale):
                return 0
        return self.bounded(total)

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
        if root is None:
            return self._approximate_power(base, exponent)
        base, exponent = Fraction(root), exponent.numerator
        # |base|**|exponent| has at least (bits − 1)·|exponent| bits in its larger part.
        if (_bits(base) - 1) * abs(exponent) <= self.max_bits:
            return self.bounded(base**exponent)
        self.rounded = True
        return self._approximate_power(base, exponent)

    def _approximate_power(self, base: Number, exponent: Number) -> Number:
        """base to the exponent, with as many digits more as the exponent takes of the base's."""
        size = abs(int(exponent)) if is_exact(exponent) else int(abs(self.context.floor(exponent)))
        lost = len(str(size)) if size.bit_length() <= self.max_bits else self.max_digits
        if not is_exact(base) and base != 1 and lost > GUARD - 2:
            raise ToolError(f"The exponent is too large for a base that is known to {self.precision} digits.")
        context = _context(self.precision + GUARD + lost)
        base = context.convert(base)
        exponent = exponent if isinstance(exponent, int) else context.convert(exponent)
        if abs(context.log(abs(base), 2) * exponent) > RANGE:
            raise self.too_large()
        return self.bounded(self.approximate(base**exponent))

    def _exact_root(self, value: Exact, degree: int) -> Exact | None:
        """The degree-th root if it is rational, else None; of a value ≥ 0 unless the degree is 1."""
        if degree == 1:
            return value
        if degree > _ROOTS:
            return None
        found = Fraction(_whole_root(value.numerator, degree), _whole_root(value.denominator, degree))
        return found if found**degree == value else None


def _whole_root(value: int, degree: int) -> int:
    """The greatest int whose power isn't above the value, by Newton's method from above."""
    root = 1 << -(-value.bit_length() // degree)
    while (lower := ((degree - 1) * root + value // root ** (degree - 1)) // degree) < root:
        root = lower
    return root
