"""What a tool may return, and what it becomes.

| returned | answer |
|---|---|
| `ToolResult` | itself |
| `str` | that text |
| `(answer, reward)`, `(answer, reward, metrics)` | `answer` (text, dict, list, ToolResult), step reward, metrics |
| anything else that JSON can hold: dict, list, number, bool, None, dataclass, pydantic model | its JSON |

A tuple always means the second form; data that happens to be a tuple is returned as a list.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolrl.types import Media, ToolResult

_ANSWERS = (str, dict, list, ToolResult)
LARGEST = 1e100
"""Of a reward or a metric: sums and squares of larger ones overflow in a batch."""


def as_result(value: Any, tool: str) -> ToolResult:
    """The ToolResult of a returned value. Raises TypeError or ValueError where it is none of the above."""
    if isinstance(value, ToolResult):
        return check_result(value, tool)
    if isinstance(value, str):
        return ToolResult(value)
    if isinstance(value, tuple):
        return _from_tuple(value, tool)
    return ToolResult(_json(value, tool))


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
    if result.reward is not None:
        _number(result.reward, tool, "reward")
    for key, metric in result.metrics.items():
        _number(metric, tool, f"metric {key!r}")
    if isinstance(result.done, bool) and isinstance(result.truncated, bool):
        return result
    return replace(result, done=bool(result.done), truncated=bool(result.truncated))


def _from_tuple(value: tuple[Any, ...], tool: str) -> ToolResult:
    if len(value) not in (2, 3) or not isinstance(value[0], _ANSWERS):
        raise TypeError(
            f"tool {tool!r} returned {_REPR.repr(value)}: a tuple has to be (answer, reward) or (answer, reward, "
            "metrics), with a text, dict, list or ToolResult as answer. Return a list for a sequence of values."
        )
    reward = value[1]
    metrics = value[2] if len(value) == 3 and value[2] is not None else {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"tool {tool!r} returned {_kind(metrics)} as metrics, expected a dict of name to number")
    return check_result(replace(as_result(value[0], tool), reward=reward, metrics=metrics), tool)


def _number(value: Any, tool: str, what: str) -> None:
    try:
        finite = math.isfinite(value)
    except (TypeError, OverflowError):
        raise TypeError(f"tool {tool!r} returned {_kind(value)} as {what}, expected a number") from None
    if not finite:
        raise ValueError(f"tool {tool!r} returned {value} as {what}, which is no finite number")
    if abs(value) > LARGEST:
        raise ValueError(f"tool {tool!r} returned {value:g} as {what}, above the greatest that counts, {LARGEST:g}")


def _json(value: Any, tool: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=to_jsonable_python)
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
