"""Corrects how math-verify compares numbers, and sets with tuples, in the process that judges.

math-verify rounds to six decimals and drops all below 1e-15, so small numbers are equal to it, and it takes a set for a
tuple. Its functions call each other through their module. So replacing two of them also corrects the elements of
sets, tuples, intervals and matrices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.sets import FiniteSet as WrittenSet  # type: ignore[import-untyped]
from math_verify import grader, parser  # type: ignore[import-untyped]
from sympy import (  # type: ignore[import-untyped]
    Basic,
    FiniteSet,
    Float,
    Integer,
    Interval,
    MatrixBase,
    N,
    Rational,
    Tuple,
    UnevaluatedExpr,
    Union,
)
from sympy.logic.boolalg import Boolean  # type: ignore[import-untyped]

DECIMALS = 6
"""Decimals in which two numbers agree if one of them is written as a decimal."""
RELATIVE = 1e-5
"""Relative difference of two such numbers at most; it counts below 0.1."""
ROUNDING = 1e-14
"""Relative difference at most of numbers that are equal but for the rounding of floats."""
DIGITS = 30
"""Digits in which irrational numbers are compared."""

_PERCENT = UnevaluatedExpr(Rational(1, 100))
_compare_sets = grader.sympy_compare_sets


def install() -> None:
    """Replace math-verify's comparisons by those here."""
    if not callable(grader.sympy_numeric_eq) or not callable(grader.sympy_compare_sets):
        raise RuntimeError("math-verify's grader has changed; install math-verify>=0.9,<0.10")
    grader.sympy_numeric_eq = _same_number
    grader.sympy_compare_sets = _SETS
    parser.latex2sympy = _latex2sympy


_KEEPS_CASE = [False]


@contextlib.contextmanager
def case_of_symbols(*, keep: bool) -> Iterator[None]:
    """Lets math-verify read R and r as two variables (`keep`) or as the same one."""
    if keep:
        parser.parse_latex_cached.cache_clear()  # its key is the text alone
    _KEEPS_CASE[0] = keep
    try:
        yield
    finally:
        _KEEPS_CASE[0] = False
        if keep:
            parser.parse_latex_cached.cache_clear()


def _latex2sympy(*args: Any, **options: Any) -> Any:
    return latex2sympy(*args, **options, conversion_config=ConversionConfig(lowercase_symbols=not _KEEPS_CASE[0]))


def equal(gold: Basic, said: Basic, *, gold_is_set: bool, said_is_set: bool) -> bool:
    r"""Whether two parsed answers are equal. The flags say that the text has the braces of a set, `\{1, 2\}`: a list
    without them, `1, 2`, may also be a tuple."""
    if _elements(gold) > 1 and not (gold_is_set or said_is_set) and _elements(said) not in (0, _elements(gold)):
        return False  # 1, 1, 2 and 1, 2
    _SETS.top = (gold_is_set, said_is_set)
    if grader.verify([gold], [said], timeout_seconds=None):
        return True
    # math-verify takes an interval for an inequality only if the ground truth is the inequality.
    swapped = isinstance(gold, Interval | Union) and isinstance(said, Boolean)
    return swapped and bool(grader.verify([said], [gold], timeout_seconds=None))


def _elements(value: Basic) -> int:
    """How many elements a list of numbers has, the same one several times included; 0 for all else."""
    if not isinstance(value, WrittenSet) or any(isinstance(item, Tuple | Interval) for item in value.args):
        return 0  # a solution of several variables that is listed twice is the same one
    return len(value._unsorted_args)


def without_percent(value: Basic) -> tuple[Basic, bool]:
    """An answer without its percent signs, and whether it has any."""
    if not value.has(_PERCENT):
        return value, False
    return value.xreplace({_PERCENT: Integer(1)}), True


def is_share(value: Basic) -> bool:
    """Whether an answer is a number between -1 and 1."""
    number = _decimals(value)
    return bool(number.is_number and number.is_real and abs(number) < 1)


def _decimals(value: Basic) -> Basic:
    """An expression whose decimals are exact, so that adding and multiplying them doesn't round."""
    value = grader.safe_sympy_doit(value)
    return value.replace(lambda it: isinstance(it, Float) and it.is_finite, lambda it: Rational(str(it)))


def _same_number(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Replaces `sympy_numeric_eq`: exact where both are exact, relative where they are small."""
    if isinstance(a, MatrixBase) and isinstance(b, MatrixBase):
        pairs = zip(a.flat(), b.flat(), strict=True) if a.shape == b.shape else ()
        return a.shape == b.shape and all(
            grader.sympy_expr_eq(x, y, float_rounding, numeric_precision) for x, y in pairs
        )
    try:
        one, other = _decimals(a), _decimals(b)
        if one.is_number and other.is_number:
            return _close(one, other, rounded=a.has(Float) or b.has(Float))
        difference = one - other
        return bool(difference == 0 or difference.evalf(numeric_precision) == 0)
    except (AttributeError, TypeError, ValueError, ArithmeticError):
        return False


def _close(one: Any, other: Any, *, rounded: bool) -> bool:
    if one == other:
        return True
    if one.is_Rational and other.is_Rational and not rounded:
        return False
    first, second = N(one, DIGITS), N(other, DIGITS)
    size, apart = max(abs(first), abs(second)), abs(N(one - other, DIGITS))
    if not (size.is_finite and apart.is_finite):
        return False
    if apart <= ROUNDING * size:
        return bool(rounded or apart <= 10 ** (5 - DIGITS) * size)
    return bool(rounded and first.round(DECIMALS) == second.round(DECIMALS) and apart <= RELATIVE * size)


class _Sets:
    """Replaces `sympy_compare_sets`: a set isn't a tuple. `top` tells of the outermost pair whether it has braces."""

    def __init__(self) -> None:
        self.top = (True, True)

    def __call__(self, gold: Any, said: Any, float_rounding: int, numeric_precision: int) -> bool:
        (gold_is_set, said_is_set), self.top = self.top, (True, True)  # elements have braces if they are sets
        if _is_ordered(said) and _is_unordered(gold):
            if gold_is_set:
                return False
            gold = Tuple(*(gold._unsorted_args if isinstance(gold, WrittenSet) else gold.args))
        elif _is_ordered(gold) and _is_unordered(said) and said_is_set:
            return False
        return bool(_compare_sets(gold, said, float_rounding, numeric_precision))


def _is_ordered(value: Any) -> bool:
    return isinstance(value, Tuple | Interval)


def _is_unordered(value: Any) -> bool:
    return isinstance(value, FiniteSet) and len(value) > 1


_SETS = _Sets()
