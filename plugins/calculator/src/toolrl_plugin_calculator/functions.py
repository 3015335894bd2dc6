"""The functions and constants that an expression may name, each with how many arguments it takes and an example."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from toolrl.errors import ToolError
from toolrl_plugin_calculator.arithmetic import BoundedArithmetic, Number, is_exact

MANY = 1000
MAX_ANGLE = 10**6
"""Radians. Beyond it the guard digits no longer cover the loss in the reduction to one turn."""
CONSTANTS = ("pi", "e", "tau")


@dataclass(frozen=True, slots=True)
class Function:
    """One function. `apply` gets the arithmetic and the arguments."""

    apply: Callable[..., Number]
    example: str
    least: int = 1
    most: int = 1

    @property
    def name(self) -> str:
        """As it is written."""
        return self.example.partition("(")[0]

    def check_count(self, count: int) -> None:
        """Raises ToolError where the function doesn't take `count` arguments."""
        if self.least <= count <= self.most:
            return
        if self.most == MANY:
            wanted = f"at least {self.least}"
        else:
            wanted = str(self.least) if self.least == self.most else f"{self.least} or {self.most}"
        raise ToolError(
            f"{self.name} takes {wanted} argument{'' if wanted == '1' else 's'}, got {count}; for example "
            f"{self.example}. Inside its parentheses a comma separates arguments: write 1234, not 1,234."
        )


def find(name: str) -> Function:
    """The function of that name. Raises ToolError with the nearest name."""
    function = FUNCTIONS.get(_ALIASES.get(name.lower(), name.lower()))
    if function is None:
        if name in CONSTANTS:
            raise ToolError(f"{name} is a number, not a function. Between factors write *, as in {name}*(2 + 3).")
        close = difflib.get_close_matches(name[:40], FUNCTIONS, n=1)
        nearest = f" Did you mean {close[0]}?" if close else ""
        raise ToolError(f"There is no function {name[:40]!r}.{nearest} There are: {', '.join(FUNCTIONS)}.")
    return function


def constant(arithmetic: BoundedArithmetic, name: str) -> Number:
    """The value of pi, e or tau. Raises ToolError for another name."""
    if name in CONSTANTS:
        context = arithmetic.context
        return 2 * context.pi if name == "tau" else +getattr(context, name)
    if name in FUNCTIONS:
        raise ToolError(f"{name} is a function: write {FUNCTIONS[name].example}.")
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


def _trunc(a: BoundedArithmetic, value: Number) -> Number:
    return -a.floor(-value) if value < 0 else a.floor(value)


def _whole(what: str, value: Number) -> int:
    if not isinstance(value, int):
        raise ToolError(f"{what} has to be a whole number.")
    return value


def _natural(what: str, name: str, value: Number) -> int:
    if _whole(what, value) < 0:
        raise ToolError(f"{name} is defined for whole numbers from 0 on.")
    return int(value)


def _gcd(a: BoundedArithmetic, *values: Number) -> Number:
    return math.gcd(*(_whole("Each argument of gcd", value) for value in values))


def _lcm(a: BoundedArithmetic, *values: Number) -> Number:
    whole = (_whole("Each argument of lcm", value) for value in values)
    return reduce(lambda left, right: a.bounded(math.lcm(left, right)), whole, 1)


def _factorial(a: BoundedArithmetic, value: Number) -> Number:
    n = _natural("The argument of factorial", "factorial", value)
    if n > a.max_bits or math.lgamma(n + 1) > a.max_bits * math.log(2):
        raise a.too_large()
    return math.factorial(n)


def _choose(name: str) -> Callable[..., Number]:
    def apply(a: BoundedArithmetic, n: Number, k: Number) -> Number:
        n, k = (_natural(f"Each argument of {name}", name, value) for value in (n, k))
        if k > n:
            return 0
        if name == "comb":
            k = min(k, n - k)
        # comb(n, k) ≥ (n/k)^k and perm(n, k) ≥ (n − k)^k: refused are only those that are too large in any case.
        bits = k * (math.log2(n // k) if name == "comb" else math.log2(max(1, n - k))) if k else 0
        if bits > a.max_bits or k > a.max_bits:
            raise a.too_large()
        return a.bounded(math.comb(n, k) if name == "comb" else math.perm(n, k))

    return apply


# Comparison.


def _min(a: BoundedArithmetic, *values: Number) -> Number:
    return reduce(lambda least, value: value if a.subtract(value, least) < 0 else least, values)


def _max(a: BoundedArithmetic, *values: Number) -> Number:
    return reduce(lambda most, value: value if a.subtract(value, most) > 0 else most, values)


# Roots, exponentials, logarithms.


def _root(a: BoundedArithmetic, value: Number, degree: Number) -> Number:
    if not isinstance(degree, int) or degree < 1:
        raise ToolError("The degree of a root has to be a whole number from 1 on.")
    if value < 0 and degree % 2 == 0:
        raise ToolError("A negative number has no real even root.")
    root = a.power(abs(value), a.bounded(Fraction(1, degree)))
    return -root if value < 0 else root


def _exp(a: BoundedArithmetic, value: Number) -> Number:
    if abs(value) > a.max_bits:
        raise a.too_large()
    return a.bounded(a.context.exp(a.approximate(value)))


def _log(a: BoundedArithmetic, value: Number, base: Number = None) -> Number:
    """The natural logarithm, or that to a base; a whole result is exact."""
    if not value > 0:
        raise ToolError("A logarithm needs a number above 0.")
    if base is not None and (not base > 0 or base == 1):
        raise ToolError("The base of a logarithm has to be above 0 and not 1.")
    result = _natural_log(a, value)
    if base is None:
        return a.bounded(result)
    result = result / _natural_log(a, base)
    if abs(result) < a.max_bits and is_exact(value) and is_exact(base):
        near = a.nearest(result)
        if a.is_noise(result - near, max(1, abs(near))) and a.power(base, near) == value:
            return near
    return a.bounded(result)


def _natural_log(a: BoundedArithmetic, value: Number) -> Number:
    """Of a number above 0. Near 1 an exact value keeps its digits only as its distance from 1."""
    if is_exact(value) and 2 * abs(value - 1) < 1:
        return a.context.log1p(a.approximate(value - 1))
    return a.context.log(a.approximate(value))


# Trigonometry, in radians.


def _wave(name: str) -> Callable[..., Number]:
    """sin or cos."""

    def apply(a: BoundedArithmetic, value: Number) -> Number:
        angle = a.approximate(value)
        if abs(angle) > MAX_ANGLE:
            raise ToolError(f"{name} takes angles up to {MAX_ANGLE}, in radians. Take the remainder by 2*pi first.")
        found = getattr(a.context, name)(angle)
        # Where it is 0, only the angle's own rounding error is left, which grows with the angle.
        return 0 if a.is_noise(found, angle) else a.bounded(found)

    return apply


def _tan(a: BoundedArithmetic, value: Number) -> Number:
    sine, cosine = _wave("sin")(a, value), _wave("cos")(a, value)
    if cosine == 0:
        raise ToolError("tan has no value here: the cosine is 0.")
    return a.divide(sine, cosine)


def _inverse(name: str) -> Callable[..., Number]:
    def apply(a: BoundedArithmetic, value: Number) -> Number:
        if name != "atan" and abs(value) > 1:
            raise ToolError(f"{name} needs a number between -1 and 1.")
        return a.bounded(getattr(a.context, name)(a.approximate(value)))

    return apply


def _atan2(a: BoundedArithmetic, y: Number, x: Number) -> Number:
    return a.bounded(a.context.atan2(a.approximate(y), a.approximate(x)))


def _hypot(a: BoundedArithmetic, *values: Number) -> Number:
    return _root(a, reduce(a.add, (a.multiply(value, value) for value in values)), 2)


FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        Function(lambda a, value: abs(value), "abs(-3)"),
        Function(_round, "round(3.14159, 2)", 1, 2),
        Function(lambda a, value: a.floor(value), "floor(3.7)"),
        Function(lambda a, value: -a.floor(-value), "ceil(3.2)"),
        Function(_trunc, "trunc(-3.7)"),
        Function(_min, "min(4, 7)", 1, MANY),
        Function(_max, "max(4, 7)", 1, MANY),
        Function(lambda a, *values: reduce(a.add, values), "sum(1, 2, 3)", 1, MANY),
        Function(_gcd, "gcd(12, 18)", 1, MANY),
        Function(_lcm, "lcm(4, 6)", 1, MANY),
        Function(_factorial, "factorial(5)"),
        Function(_choose("comb"), "comb(5, 2)", 2, 2),
        Function(_choose("perm"), "perm(5, 2)", 2, 2),
        Function(lambda a, value: _root(a, value, 2), "sqrt(16)"),
        Function(lambda a, value: _root(a, value, 3), "cbrt(27)"),
        Function(_root, "root(81, 4)", 2, 2),
        Function(lambda a, base, exponent: a.power(base, exponent), "pow(2, 10)", 2, 2),
        Function(lambda a, left, right: a.modulo(left, right), "mod(17, 5)", 2, 2),
        Function(_exp, "exp(1)"),
        Function(_log, "log(8, 2)", 1, 2),
        Function(lambda a, value: _log(a, value, 2), "log2(8)"),
        Function(lambda a, value: _log(a, value, 10), "log10(1000)"),
        Function(_wave("sin"), "sin(pi/6)"),
        Function(_wave("cos"), "cos(pi/3)"),
        Function(_tan, "tan(pi/4)"),
        Function(_inverse("asin"), "asin(0.5)"),
        Function(_inverse("acos"), "acos(0.5)"),
        Function(_inverse("atan"), "atan(1)"),
        Function(_atan2, "atan2(1, 2)", 2, 2),
        Function(lambda a, value: a.divide(a.multiply(value, 180), +a.context.pi), "degrees(pi)"),
        Function(lambda a, value: a.divide(a.multiply(value, +a.context.pi), 180), "radians(180)"),
        Function(_hypot, "hypot(3, 4)", 1, MANY),
    )
}
_ALIASES = {
    "ln": "log", "int": "trunc", "ceiling": "ceil", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "fabs": "abs", "binomial": "comb",
}  # fmt: skip
