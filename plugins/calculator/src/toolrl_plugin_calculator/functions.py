"""The functions and constants that an expression may name. A function's parameters say how many arguments it takes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Literal, NamedTuple

from toolrl.errors import ToolError
from toolrl_plugin_calculator.arithmetic import RANGE, BoundedArithmetic, Number, is_exact

MAX_ANGLE = 10**6
"""Radians. Beyond it the guard digits no longer cover the loss in the reduction to one turn."""
CONSTANTS = ("pi", "e", "tau")


class Function(NamedTuple):
    """One function. `apply` gets the arithmetic and the arguments."""

    apply: Callable[..., Number]
    example: str

    def __call__(self, arithmetic: BoundedArithmetic, arguments: Sequence[Number]) -> Number:
        """The value. Raises ToolError, also for another number of arguments than the function takes."""
        try:
            inspect.signature(self.apply).bind(arithmetic, *arguments)
        except TypeError:
            raise ToolError(
                f"{self.example.partition('(')[0]} doesn't take {len(arguments)} arguments: write {self.example}. "
                "Inside its parentheses a comma separates arguments: write 1234, not 1,234."
            ) from None
        return self.apply(arithmetic, *arguments)


def find(name: str) -> Function:
    """The function of that name. Raises ToolError."""
    function = FUNCTIONS.get(_ALIASES.get(name.lower(), name.lower()))
    if function is None:
        raise ToolError(
            f"There is no function {name[:40]!r}; between factors write *. There are: {', '.join(FUNCTIONS)}."
        )
    return function


def constant(arithmetic: BoundedArithmetic, name: str) -> Number:
    """The value of pi, e or tau. Raises ToolError for another name."""
    if name in CONSTANTS:
        context = arithmetic.context
        return 2 * context.pi if name == "tau" else +getattr(context, name)
    raise ToolError(f"{name[:40]!r} has no value here: put in its number. Known names are {', '.join(CONSTANTS)}.")


# Rounding and whole numbers.


def _round(a: BoundedArithmetic, value: Number, places: Number = 0) -> Number:
    """Halves away from zero, as taught in school."""
    places = _whole("round's second argument", places)
    if abs(places) > a.max_digits:
        raise ToolError(f"round: {places} places are out of range, at most {a.max_digits}.")
    scale = Fraction(10) ** places
    scaled = a.multiply(value, scale)
    if not is_exact(scaled) and a.context.mag(scaled) > a.context.prec - 8:
        return value  # more places than are known: nothing to round
    rounded = a.floor(a.add(abs(scaled), Fraction(1, 2)))
    return a.bounded((-rounded if value < 0 else rounded) / scale)


def _whole(what: str, value: Number, least: float = -math.inf) -> int:
    if not isinstance(value, int):
        raise ToolError(f"{what} has to be a whole number.")
    if value < least:
        raise ToolError(f"{what} has to be a whole number from {least} on.")
    return value


def _factorial(a: BoundedArithmetic, value: Number) -> Number:
    n = _whole("The argument of factorial", value, 0)
    bits = math.lgamma(n + 1) / math.log(2) if n <= RANGE else math.inf
    if bits > RANGE:
        raise a.too_large()
    if bits <= a.max_bits:
        return math.factorial(n)
    a.rounded = True
    return a.bounded(a.context.factorial(n))


def _comb(a: BoundedArithmetic, n: Number, k: Number) -> Number:
    n, k = (_whole("Each argument of comb", value, 0) for value in (n, k))
    if k > n:
        return 0
    k = min(k, n - k)
    # comb(n, k) ≥ (n/k)^k: refused are only those that are too large in any case.
    bits = k * math.log2(n // k) if k else 0
    if bits > RANGE:
        raise a.too_large()
    if max(k, bits) <= a.max_bits:
        return a.bounded(math.comb(n, k))
    a.rounded = True
    return a.bounded(a.context.binomial(n, k))


def _extreme(a: BoundedArithmetic, sign: int, values: Sequence[Number]) -> Number:
    """The greatest value for sign 1, the least for -1."""
    return reduce(lambda best, value: value if sign * a.subtract(value, best) > 0 else best, values)


# Roots, exponentials, logarithms.


def _sqrt(a: BoundedArithmetic, value: Number) -> Number:
    if value < 0:
        raise ToolError("A negative number has no real square root.")
    return a.power(value, Fraction(1, 2))


def _exp(a: BoundedArithmetic, value: Number) -> Number:
    if abs(value) > RANGE:
        raise a.too_large()
    return a.bounded(a.context.exp(a.approximate(value)))


def _log(a: BoundedArithmetic, value: Number, base: Number = None) -> Number:
    """The natural logarithm, or that to a base; a whole result is exact."""
    if not value > 0:
        raise ToolError("A logarithm needs a number above 0.")
    if base is not None and (not base > 0 or base == 1):
        raise ToolError("The base of a logarithm has to be above 0 and not 1.")
    result = a.context.log(a.approximate(value))
    if base is None:
        return a.bounded(result)
    result = a.divide(result, a.context.log(a.approximate(base)))
    if abs(result) < a.max_bits and is_exact(value, base):
        near = a.nearest(result)
        if a.is_noise(result - near, max(1, abs(near))) and a.power(base, near) == value:
            return near
    return a.bounded(result)


# Trigonometry, in radians.


def _wave(a: BoundedArithmetic, name: Literal["sin", "cos"], value: Number) -> Number:
    angle = a.approximate(value)
    if abs(angle) > MAX_ANGLE:
        raise ToolError(f"{name} takes angles up to {MAX_ANGLE}, in radians. Take the remainder by 2*pi first.")
    found = getattr(a.context, name)(angle)
    # Where it is 0, only the angle's own rounding error is left, which grows with the angle.
    return 0 if a.is_noise(found, angle) else a.bounded(found)


def _tan(a: BoundedArithmetic, value: Number) -> Number:
    sine, cosine = _wave(a, "sin", value), _wave(a, "cos", value)
    if cosine == 0:
        raise ToolError("tan has no value here: the cosine is 0.")
    return a.divide(sine, cosine)


def _inverse(a: BoundedArithmetic, name: Literal["asin", "acos", "atan"], value: Number) -> Number:
    if name != "atan" and abs(value) > 1:
        raise ToolError(f"{name} needs a number between -1 and 1.")
    return a.bounded(getattr(a.context, name)(a.approximate(value)))


_BY_EXAMPLE: dict[str, Callable[..., Number]] = {
    "abs(-3)": lambda a, x: abs(x),
    "round(3.14159, 2)": _round,
    "floor(3.7)": lambda a, x: a.floor(x),
    "ceil(3.2)": lambda a, x: -a.floor(-x),
    "min(4, 7)": lambda a, x, *more: _extreme(a, -1, (x, *more)),
    "max(4, 7)": lambda a, x, *more: _extreme(a, 1, (x, *more)),
    "gcd(12, 18)": lambda a, x, *more: math.gcd(*(_whole("Each argument of gcd", n) for n in (x, *more))),
    "factorial(5)": _factorial,
    "comb(5, 2)": _comb,
    "sqrt(16)": _sqrt,
    "pow(2, 10)": lambda a, base, exponent: a.power(base, exponent),
    "exp(1)": _exp,
    "log(8, 2)": _log,
    "log2(8)": lambda a, x: _log(a, x, 2),
    "log10(1000)": lambda a, x: _log(a, x, 10),
    "sin(pi/6)": lambda a, x: _wave(a, "sin", x),
    "cos(pi/3)": lambda a, x: _wave(a, "cos", x),
    "tan(pi/4)": _tan,
    "asin(0.5)": lambda a, x: _inverse(a, "asin", x),
    "acos(0.5)": lambda a, x: _inverse(a, "acos", x),
    "atan(1)": lambda a, x: _inverse(a, "atan", x),
}
FUNCTIONS = {example.partition("(")[0]: Function(apply, example) for example, apply in _BY_EXAMPLE.items()}
_ALIASES = {"ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
