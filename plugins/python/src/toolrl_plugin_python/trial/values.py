"""Plain values as JSON and back, between a program that is tested and its test.

Nothing but data crosses: no class, no function, no object with a say in its own comparison. Subclasses become what they
derive from, arrays lists, iterators what they give. Both sides of the wall use this file.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

MODULES = ("math", "cmath", "re", "sys", "random", "itertools", "functools", "collections", "string", "json",
           "datetime", "time", "copy", "heapq", "bisect", "operator", "statistics", "decimal", "fractions")  # fmt: skip
"""What a test may use without importing it, as the programs that tests were written for import it."""
LONGEST_ITERATOR = 10_000
_WORD = 1 << 63


def encode(value: Any) -> Any:
    """What JSON can hold. Raises TypeError for what is no data."""
    if value is None or isinstance(value, bool):
        return value
    for kind, as_json in _ENCODERS:
        if isinstance(value, kind):
            return as_json(value)
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _int(value: int) -> Any:
    value = int(value)
    return value if -_WORD <= value < _WORD else {"i": hex(value)}


def _many(tag: str) -> Any:
    return lambda value: {tag: [encode(item) for item in value]}


def _iterator(value: Iterator[Any]) -> Any:
    items = list(itertools.islice(value, LONGEST_ITERATOR + 1))
    if len(items) > LONGEST_ITERATOR:
        raise TypeError(f"an iterator of more than {LONGEST_ITERATOR} items is no plain value")
    return {"it": [encode(item) for item in items]}


_ENCODERS: tuple[tuple[Any, Any], ...] = (
    (int, _int),
    (float, float),
    (str, lambda value: str.__str__(value)),
    (list, lambda value: [encode(item) for item in value]),
    (tuple, _many("t")),
    (frozenset, _many("fs")),
    (set, _many("s")),
    (dict, lambda value: {"d": [[encode(key), encode(item)] for key, item in value.items()]}),
    ((bytes, bytearray), lambda value: {"b": bytes(value).hex()}),
    (complex, lambda value: {"c": [value.real, value.imag]}),
    (Decimal, lambda value: {"de": str(value)}),
    (Fraction, lambda value: {"fr": [_int(value.numerator), _int(value.denominator)]}),
    (deque, _many("dq")),
    (range, lambda value: {"r": [_int(value.start), _int(value.stop), _int(value.step)]}),
    (KeysView, _many("s")),
    ((ValuesView, ItemsView), lambda value: [encode(item) for item in value]),
    (Iterator, _iterator),
)

_DECODERS: dict[str, Any] = {
    "i": lambda given: int(given, 16),
    "t": lambda given: tuple(decode(item) for item in given),
    "s": lambda given: {decode(item) for item in given},
    "fs": lambda given: frozenset(decode(item) for item in given),
    "d": lambda given: {decode(key): decode(item) for key, item in given},
    "b": bytes.fromhex,
    "c": lambda given: complex(*given),
    "de": Decimal,
    "fr": lambda given: Fraction(*(decode(part) for part in given)),
    "dq": lambda given: deque(decode(item) for item in given),
    "r": lambda given: range(*(decode(part) for part in given)),
    "it": lambda given: iter([decode(item) for item in given]),
}


def decode(given: Any) -> Any:
    """The value again, of plain types only. Raises ValueError or TypeError for what `encode` doesn't give."""
    if isinstance(given, list):
        return [decode(item) for item in given]
    if not isinstance(given, dict):
        return given
    if len(given) != 1:
        raise ValueError("no value")
    ((tag, content),) = given.items()
    if tag not in _DECODERS:
        raise ValueError("no value")
    return _DECODERS[tag](content)


def dumps(message: Any) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode("ascii") + b"\n"
