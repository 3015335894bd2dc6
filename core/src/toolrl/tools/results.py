"""What a tool may return, and what it becomes.

| returned | answer |
|---|---|
| `ToolResult` | itself |
| `str` | that text |
| `(answer, reward)`, `(answer, reward, metrics)` | `answer` (text, dict, list, ToolResult …), step reward, metrics |
| date, time, UUID, Decimal, path, bytes, an Enum of text | its text |
| anything else that JSON can hold: dict, list, set, number, bool, None, dataclass, pydantic model, array, table … | its
JSON |

A tuple always means the second form; data that happens to be a tuple is returned as a list. A named tuple is data,
unless its second field is called `reward`. Rewards and metrics are finite numbers of any library.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError

from toolrl.tools.values import as_number, as_text
from toolrl.types import Media, ToolResult

LARGEST = 1e100
"""Of a reward or a metric: sums and squares of larger ones overflow in a batch."""


def as_result(value: Any, tool: str) -> ToolResult:
    """The ToolResult of a returned value. Raises TypeError or ValueError where it is none of the above."""
    if isinstance(value, ToolResult):
        return check_result(value, tool)
    if isinstance(value, tuple) and getattr(value, "_fields", ("", "reward"))[1:2] == ("reward",):
        return _from_tuple(value, tool)
    return ToolResult(_text(value, tool))


def check_result(result: Any, tool: str) -> ToolResult:
    """A result whose fields have the right types and finite numbers. Raises TypeError or ValueError."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"tool {tool!r} returned {_kind(result)}, expected a ToolResult")
    if not isinstance(result.text, str):
        raise TypeError(f"tool {tool!r} returned a ToolResult whose text is {_kind(result.text)}, expected a str")
    if result.error is not None and not isinstance(result.error, str):
        raise TypeError(f"tool {tool!r} returned a ToolResult whose error is {_kind(result.error)}, expected a str")
    if not isinstance(result.media, tuple | list) or not all(isinstance(it, Media) for it in result.media):
        raise TypeError(f"tool {tool!r} returned a ToolResult whose media are {_kind(result.media)}, expected Media")
    if not isinstance(result.metrics, Mapping):
        raise TypeError(f"tool {tool!r} returned {_kind(result.metrics)} as metrics, expected a dict of name to number")
    return replace(
        result,
        reward=None if result.reward is None else _number(result.reward, tool, "reward"),
        metrics={str(key): _number(metric, tool, f"metric {key!r}") for key, metric in result.metrics.items()},
        done=bool(result.done),
        truncated=bool(result.truncated),
    )


def _from_tuple(value: tuple[Any, ...], tool: str) -> ToolResult:
    if len(value) not in (2, 3) or not _is_answer(value[0], tool):
        raise TypeError(
            f"tool {tool!r} returned {_REPR.repr(value)}: a tuple has to be (answer, reward) or (answer, reward, "
            "metrics), with a text, dict, list or ToolResult as answer. Return a list for a sequence of values."
        )
    reward = value[1]
    metrics = value[2] if len(value) == 3 and value[2] is not None else {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"tool {tool!r} returned {_kind(metrics)} as metrics, expected a dict of name to number")
    return check_result(replace(as_result(value[0], tool), reward=reward, metrics=metrics), tool)


def _is_answer(value: Any, tool: str) -> bool:
    """False for numbers, dates and the like: two of them are rather data than an answer and its reward."""
    if isinstance(value, str | ToolResult | Mapping | list):
        return True
    return not isinstance(value, tuple | bytes) and _text(value, tool)[:1] in ("{", "[")


def _number(value: Any, tool: str, what: str) -> float:
    try:
        number = as_number(value)
    except TypeError:
        raise TypeError(f"tool {tool!r} returned {_kind(value)} as {what}, expected a number") from None
    if not math.isfinite(number):
        raise ValueError(f"tool {tool!r} returned {number} as {what}, which is no finite number")
    if abs(number) > LARGEST:
        raise ValueError(f"tool {tool!r} returned {number:g} as {what}, above the greatest that counts, {LARGEST:g}")
    return number


def _text(value: Any, tool: str) -> str:
    try:
        return as_text(value)
    except (TypeError, ValueError, PydanticSerializationError) as error:
        raise TypeError(
            f"tool {tool!r} returned {_kind(value)}, which JSON can't hold ({error}). "
            "Return a str, a dict, a ToolResult, or (answer, reward)."
        ) from error


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {_REPR.repr(value)}"


_REPR = reprlib.Repr()
"""Short whatever it is, without writing ten megabytes out first."""
_REPR.maxstring = _REPR.maxother = 80
