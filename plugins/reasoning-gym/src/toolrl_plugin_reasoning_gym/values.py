"""Values of Python as JSON and back, so that a scorer gets the metadata that its generator made.

Plain JSON makes lists of tuples and texts of numeric keys, and some scorers compare with tuples. What JSON hasn't
stands as an object with one marked key: `{"$tuple": […]}`, `{"$set": […]}`, `{"$dict": [[key, value], …]}`,
`{"$fraction": "1/3"}`, `{"$decimal": "0.1"}`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

TUPLE, SET, DICT = "$tuple", "$set", "$dict"
FRACTION, DECIMAL = "$fraction", "$decimal"
_PLAIN = (bool, int, float, str)
_MADE: dict[Any, Callable[[Any], Any]] = {TUPLE: tuple, SET: set, DICT: dict, FRACTION: Fraction, DECIMAL: Decimal}


def pack(value: Any) -> Any:
    """`value` as what JSON has. Raises TypeError for what has no form here."""
    if value is None:
        return None
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)  # those of numpy and of an enum, too
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        return {TUPLE: [pack(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {SET: [pack(item) for item in sorted(value, key=repr)]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: pack(item) for key, item in value.items()}
        return {DICT: [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, Fraction):
        return {FRACTION: str(value)}
    if isinstance(value, Decimal):
        return {DECIMAL: str(value)}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return pack(value.tolist())
    raise TypeError(f"a value of type {type(value).__name__}, which has no form in JSON")


def unpack(value: Any) -> Any:
    """What `pack` was given. Raises ValueError for a marked object that `pack` doesn't make."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value), None)
    if len(value) > 1 or mark not in _MADE:
        return {key: unpack(item) for key, item in value.items()}
    inner = value[mark]
    try:
        return _MADE[mark](str(inner) if mark in (FRACTION, DECIMAL) else unpack(inner))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{mark} holds {inner!r:.40}, which can't be read: {error}") from None
