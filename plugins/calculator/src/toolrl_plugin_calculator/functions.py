"""The functions and constants that an expression may name, each with how many arguments it takes and an example."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from toolrl.errors import ToolError
from toolrl_plugin_calculator.arithmetic import Arithmetic, Number, is_exact, simplest

MANY = 1000
MAX_ANGLE = 10**6
"""Radians. Beyond it the guard digits no longer cover the loss in the reduction to one turn."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function. `apply` gets the arithmetic and the arguments."""

    name: str
    apply: Callable[..., Number]
    least: int
    most: int
    example: str

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
    function = FUNCTIONS.get(name) or FUNCTIONS.get(_ALIASES.get(name.lower(), name.lower()))
    if function is None:
        if name in CONSTANTS:
            raise ToolError(f"{name} is a number, not a function. Between factors write *, as in {name}*(2 + 3).")
        raise ToolError(f"There is no function {name[:40]!r}.{_nearest(name, FUNCTIONS)} There are: {_NAMES}.")
    return function


def constant(arithmetic: Arithmetic, name: str) -> Number:
    """The value of pi, e or tau. Raises ToolError for another name."""
    if name in CONSTANTS:
        context = arithmetic.context
        return {"pi": +context.pi, "e": +context.e, "tau": 2 * context.pi}[name]
    if name in FUNCTIONS:
        raise ToolError(f"{name} is a function: write {FUNCTIONS[name].example}.")
    raise ToolError(f"{name[:40]!r} has no value here: put in its number. Known names are {', '.join(CONSTANTS)}.")


def _nearest(name: str, names: dict[str, Function]) -> str:
    close = difflib.get_close_matches(name[:40], names, n=1)
    return f" Did you mean {close[0]}?" if close else ""


# Rounding and whole numbers.


def _round(a: Arithmetic, value: Number, places: Number = 0) -> Number:
    """Halves away from zero, as taught in school."""
    places = _whole("round's second argument", places)
    if abs(places) > a.max_digits:
        raise ToolError(f"round: {places} places are out of range, at most {a.max_digits}.")
    scale = Fraction(10) ** places
    scaled = a.multiply(value, simplest(scale))
    if not is_exact(scaled) and a.context.mag(scaled) > a.context.prec - 8:
        return value  # more places than are known: nothing to round
    rounded = a.floor(a.add(abs(scaled), Fraction(1, 2)))
    return a.bounded(simplest((-rounded if value < 0 else rounded) / scale))


def _ceil(a: Arithmetic, value: Number) -> Number:
    return -a.floor(-value)


def _trunc(a: Arithmetic, value: Number) -> Number:
    return _ceil(a, value) if value < 0 else a.floor(value)


def _whole(what: str, value: Number) -> int:
    if type(value) is not int:
        raise ToolError(f"{what} has to be a whole number.")
    return value


def _gcd(a: Arithmetic, *values: Number) -> Number:
    return math.gcd(*(_whole("Each argument of gcd", value) for value in values))


def _lcm(a: Arithmetic, *values: Number) -> Number:
    whole = (_whole("Each argument of lcm", value) for value in values)
    return reduce(lambda left, right: a.bounded(math.lcm(left, right)), whole, 1)


def _factorial(a: Arithmetic, value: Number) -> Number:
    n = _whole("The argument of factorial", value)
    if n < 0:
        raise ToolError("factorial is defined for whole numbers from 0 on.")
    if n > a.max_bits or math.lgamma(n + 1) > a.max_bits * math.log(2):
        raise a.too_large()
    return math.factorial(n)


def _comb(a: Arithmetic, n: Number, k: Number) -> Number:
    return _choose(a, "comb", n, k)


def _perm(a: Arithmetic, n: Number, k: Number) -> Number:
    return _choose(a, "perm", n, k)


def _choose(a: Arithmetic, name: str, n: Number, k: Number) -> Number:
    n, k = _whole(f"Each argument of {name}", n), _whole(f"Each argument of {name}", k)
    if n < 0 or k < 0:
        raise ToolError(f"{name} is defined for whole numbers from 0 on.")
    if k > n:
        return 0
    if name == "comb":
        k = min(k, n - k)
    # comb(n, k) ≥ (n/k)^k and perm(n, k) ≥ (n − k)^k: refused are only those that are too large in any case.
    bits = k * (math.log2(n / k) if name == "comb" else math.log2(max(1, n - k))) if k and n < 2**1000 else k * 1000
    if bits > a.max_bits or k > a.max_bits:
        raise a.too_large()
    return a.bounded(math.comb(n, k) if name == "comb" else math.perm(n, k))


# Comparison and sums.


def _min(a: Arithmetic, *values: Number) -> Number:
    return reduce(lambda least, value: value if a.subtract(value, least) < 0 else least, values)


def _max(a: Arithmetic, *values: Number) -> Number:
    return reduce(lambda most, value: value if a.subtract(value, most) > 0 else most, values)


def _sum(a: Arithmetic, *values: Number) -> Number:
    return reduce(a.add, values)


# Roots, exponentials, logarithms.


def _root(a: Arithmetic, value: Number, degree: Number) -> Number:
    if type(degree) is not int or degree < 1:
        raise ToolError("The degree of a root has to be a whole number from 1 on.")
    if value < 0 and degree % 2:
        return -a.power(-value, Fraction(1, degree))
    if value < 0:
        raise ToolError("A negative number has no real even root.")
    return a.power(value, simplest(Fraction(1, degree)))


def _sqrt(a: Arithmetic, value: Number) -> Number:
    return _root(a, value, 2)


def _cbrt(a: Arithmetic, value: Number) -> Number:
    return _root(a, value, 3)


def _exp(a: Arithmetic, value: Number) -> Number:
    if value == 0:
        return 1
    if abs(value) > a.max_bits:
        raise a.too_large()
    return a.bounded(a.context.exp(a.approximate(value)))


def _log(a: Arithmetic, value: Number, base: Number = None) -> Number:
    """The natural logarithm, or that to a base; a whole result is exact."""
    if not value > 0:
        raise ToolError("A logarithm needs a number above 0.")
    if base is not None and (not base > 0 or base == 1):
        raise ToolError("The base of a logarithm has to be above 0 and not 1.")
    if value == 1:
        return 0
    result = _natural_log(a, value)
    if base is None:
        return a.bounded(result)
    result = result / _natural_log(a, base)
    if abs(result) < a.max_bits and is_exact(value) and is_exact(base):
        near = a.nearest(result)
        if a.is_noise(result - near, max(1, abs(near))) and a.power(base, near) == value:
            return near
    return a.bounded(result)


def _natural_log(a: Arithmetic, value: Number) -> Number:
    """Of a number above 0. Near 1 an exact value keeps its digits only as its distance from 1."""
    if is_exact(value) and 2 * abs(value - 1) < 1:
        return a.context.log1p(a.approximate(value - 1))
    return a.context.log(a.approximate(value))


def _log2(a: Arithmetic, value: Number) -> Number:
    return _log(a, value, 2)


def _log10(a: Arithmetic, value: Number) -> Number:
    return _log(a, value, 10)


# Trigonometry, in radians.


def _trigonometric(name: str) -> Callable[..., Number]:
    def apply(a: Arithmetic, value: Number) -> Number:
        if value == 0:
            return 1 if name == "cos" else 0
        angle = a.approximate(value)
        if abs(angle) > MAX_ANGLE:
            raise ToolError(f"{name} takes angles up to {MAX_ANGLE}, in radians. Take the remainder by 2*pi first.")
        # Where sin or cos is 0, only the angle's own rounding error is left: it grows with the angle.
        small = a.context.cos(angle) if name == "tan" else getattr(a.context, name)(angle)
        vanishes = abs(angle) > 1e-3 and a.is_noise(small, max(1, abs(angle)))
        if name == "tan":
            if vanishes:
                raise ToolError("tan has no value here: the cosine is 0.")
            sine = a.context.sin(angle)
            return 0 if abs(angle) > 1e-3 and a.is_noise(sine, max(1, abs(angle))) else a.bounded(sine / small)
        return 0 if vanishes else a.bounded(small)

    return apply


def _inverse(name: str) -> Callable[..., Number]:
    def apply(a: Arithmetic, value: Number) -> Number:
        if name != "atan" and abs(value) > 1:
            raise ToolError(f"{name} needs a number between -1 and 1.")
        if value == (1 if name == "acos" else 0):
            return 0
        return a.bounded(getattr(a.context, name)(a.approximate(value)))

    return apply


def _atan2(a: Arithmetic, y: Number, x: Number) -> Number:
    if y == 0 and not x < 0:
        return 0
    return a.bounded(a.context.atan2(a.approximate(y), a.approximate(x)))


def _degrees(a: Arithmetic, value: Number) -> Number:
    return a.divide(a.multiply(value, 180), +a.context.pi)


def _radians(a: Arithmetic, value: Number) -> Number:
    return a.divide(a.multiply(value, +a.context.pi), 180)


def _hypot(a: Arithmetic, *values: Number) -> Number:
    return _sqrt(a, _sum(a, *(a.multiply(value, value) for value in values)))


CONSTANTS = ("pi", "e", "tau")

FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        Function("abs", lambda a, value: abs(value), 1, 1, "abs(-3)"),
        Function("round", _round, 1, 2, "round(3.14159, 2)"),
        Function("floor", lambda a, value: a.floor(value), 1, 1, "floor(3.7)"),
        Function("ceil", _ceil, 1, 1, "ceil(3.2)"),
        Function("trunc", _trunc, 1, 1, "trunc(-3.7)"),
        Function("min", _min, 1, MANY, "min(4, 7)"),
        Function("max", _max, 1, MANY, "max(4, 7)"),
        Function("sum", _sum, 1, MANY, "sum(1, 2, 3)"),
        Function("gcd", _gcd, 1, MANY, "gcd(12, 18)"),
        Function("lcm", _lcm, 1, MANY, "lcm(4, 6)"),
        Function("factorial", _factorial, 1, 1, "factorial(5)"),
        Function("comb", _comb, 2, 2, "comb(5, 2)"),
        Function("perm", _perm, 2, 2, "perm(5, 2)"),
        Function("sqrt", _sqrt, 1, 1, "sqrt(16)"),
        Function("cbrt", _cbrt, 1, 1, "cbrt(27)"),
        Function("root", _root, 2, 2, "root(81, 4)"),
        Function("pow", lambda a, base, exponent: a.power(base, exponent), 2, 2, "pow(2, 10)"),
        Function("mod", lambda a, left, right: a.modulo(left, right), 2, 2, "mod(17, 5)"),
        Function("exp", _exp, 1, 1, "exp(1)"),
        Function("log", _log, 1, 2, "log(8, 2)"),
        Function("log2", _log2, 1, 1, "log2(8)"),
        Function("log10", _log10, 1, 1, "log10(1000)"),
        Function("sin", _trigonometric("sin"), 1, 1, "sin(pi/6)"),
        Function("cos", _trigonometric("cos"), 1, 1, "cos(pi/3)"),
        Function("tan", _trigonometric("tan"), 1, 1, "tan(pi/4)"),
        Function("asin", _inverse("asin"), 1, 1, "asin(0.5)"),
        Function("acos", _inverse("acos"), 1, 1, "acos(0.5)"),
        Function("atan", _inverse("atan"), 1, 1, "atan(1)"),
        Function("atan2", _atan2, 2, 2, "atan2(1, 2)"),
        Function("degrees", _degrees, 1, 1, "degrees(pi)"),
        Function("radians", _radians, 1, 1, "radians(180)"),
        Function("hypot", _hypot, 1, MANY, "hypot(3, 4)"),
    )
}
_ALIASES = {
    "ln": "log", "int": "trunc", "ceiling": "ceil", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "fabs": "abs", "binomial": "comb",
}  # fmt: skip
_NAMES = ", ".join(FUNCTIONS)
