"""Python values as JSON, and numbers of any library as Python's: what a tool or a reward returned.

Objects of numpy, torch, pandas and the like are known by their attributes, so that core imports none of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

_LISTS = (list, tuple, map, filter, zip, enumerate, reversed)
"""Sequences, and lazy views of them. Other iterators may be endless, or belong to a file."""
_MISSING, _WRITTEN = ("NAType", "NaTType"), ("Period", "Interval")
"""Types of pandas: missing values, of which pydantic takes one for a date, and those that are their own text."""
_TO_PYTHON = ("as_py", "to_pylist", "to_dicts", "to_list")
"""Methods of pyarrow's and polars' scalars, columns and tables."""


def as_text(value: Any) -> str:
    """The text that the model reads: a text as it is, also that of a date or a path, and anything else as JSON.

    Raises TypeError or ValueError for a value that JSON can't hold.
    """
    try:
        found = plain(value)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except RecursionError:
        raise ValueError("it contains itself, or is nested too deeply") from None


def plain(value: Any) -> Any:
    """A copy of a value made of dict, list, str, int, float, bool and None alone.

    Dates, UUIDs, decimals and paths become text. Sets are sorted, so that they read the same in each run. Bytes are
    read as UTF-8, with `\\xff` for a byte that isn't. Raises TypeError or ValueError for a value that JSON can't hold.
    """
    if value is None or isinstance(value, bool) or type(value) in (str, int, float):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return _items(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(plain, value), strict=True))
    if isinstance(value, _LISTS):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=_order)
    return _plain_object(value)


def as_number(value: Any) -> float:
    """A number of any library, or a bool, as a float. Raises TypeError for anything else, text included."""
    found = scalar(value)
    if found is None or isinstance(found, str | bytes | bytearray | complex):
        raise TypeError("expected a number")
    try:
        return float(found)
    except OverflowError:  # an int above all floats
        return math.inf if found > 0 else -math.inf
    except Exception:  # noqa: BLE001 - each library raises errors of its own
        raise TypeError("expected a number") from None


def scalar(value: Any) -> Any:
    """The Python number or bool in a scalar of numpy, torch or the like; any other value as it is.

    An array with one element counts as a scalar.
    """
    if hasattr(value, "dtype") and callable(getattr(value, "item", None)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # raised for several elements
            found = value.item()
            return float(found) if type(found) is type(value) else found  # numpy's longdouble gives itself
    return value


def _plain_object(value: Any) -> Any:
    """The copy of a value that isn't one of Python's own containers."""
    if isinstance(value, type):
        raise TypeError("a class isn't data")
    if (name := type(value).__name__) in _MISSING + _WRITTEN:
        return None if name in _MISSING else str(value)
    if hasattr(value, "__pydantic_serializer__"):
        return _by_pydantic(value)
    if hasattr(value, "iloc"):
        return plain(_from_table(value) if hasattr(value, "columns") else _from_column(value))
    if hasattr(value, "dtype") and (hasattr(value, "tolist") or hasattr(value, "__array__")):
        return plain(array_items(value))
    fields = getattr(value, "__attrs_attrs__", None)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
    if fields is not None:
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    for method in _TO_PYTHON:
        if callable(getattr(value, method, None)):
            return plain(getattr(value, method)())
    if isinstance(value, os.PathLike):
        return plain(os.fspath(value))
    if isinstance(value, Collection):  # ranges, views of dicts, deques
        return [plain(item) for item in value]
    return _by_pydantic(value)


def _by_pydantic(value: Any) -> Any:
    """The copy of a pydantic model, and of the types of the standard library that pydantic knows."""

    def others(item: Any) -> Any:
        if item is value:
            raise TypeError(f"an object of type {type(item).__name__} isn't data")
        return plain(item)

    return to_jsonable_python(value, fallback=others)


def _items(value: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping with text as keys. Raises ValueError if two keys have the same text."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = as_text(key)
        if name in found:
            raise ValueError(f"two keys are written {name[:80]!r}")
        found[name] = plain(item)
    return found


def _order(item: Any) -> tuple[bool, Any]:
    """Numbers by size, then all else by its JSON."""
    is_number = isinstance(item, int | float)
    return not is_number, item if is_number else json.dumps(item, sort_keys=True)


def array_items(value: Any) -> Any:
    """The elements of an array or a tensor in nested lists, or the value of a scalar. Elements that are objects of
    Python are as they are."""
    if not hasattr(value, "tolist"):
        value = value.__array__()
    names, kind = getattr(value.dtype, "names", None), getattr(value.dtype, "kind", "")
    if names or kind in ("m", "M"):  # records; times, of which tolist() gives nanoseconds
        if getattr(value, "shape", ()):
            return [array_items(item) for item in value]
        return {name: value[name] for name in names} if names else str(value)
    found = value.tolist()
    if type(found) is type(value):  # numpy's longdouble
        return float(found)
    return short_floats(found) if getattr(value.dtype, "itemsize", 8) <= 4 else found


def short_floats(found: Any) -> Any:
    """Numbers of 32 bits or fewer, with the digits that tell a float from its neighbors: 0.1, not 0.10000000149."""
    if isinstance(found, list):
        return [short_floats(item) for item in found]
    if isinstance(found, float) and math.isfinite(found):
        return next((it for it in _rounded(found) if struct.pack("f", it) == struct.pack("f", found)), found)
    return found


def _rounded(number: float) -> Iterator[float]:
    """The number with 6, 7, 8 and 9 digits, while that is in the range of 32 bits."""
    found = (float(f"{number:.{digits}g}") for digits in range(6, 10))
    return (it for it in found if abs(it) < 3.4e38)


def _from_table(table: Any) -> Any:
    """A DataFrame of pandas as a list of rows, with its index if that is more than row numbers."""
    if table.columns.is_unique:
        with contextlib.suppress(ValueError):  # the index is called like a column
            numbered = type(table.index).__name__ == "RangeIndex"
            return (table if numbered else table.reset_index()).to_dict("records")
    rows = table.itertuples(index=False, name=None)
    return {"columns": list(table.columns), "index": list(table.index), "data": list(rows)}


def _from_column(column: Any) -> Any:
    """A Series of pandas: a list, or values by their label if it has labels."""
    if type(column.index).__name__ == "RangeIndex":
        return column.tolist()
    return column.to_dict() if column.index.is_unique else list(zip(column.index, column.tolist(), strict=True))
