"""What verl's tools return, as toolrl's results."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping
from typing import Any, Literal

from toolrl.builtin.given_rows import plain
from toolrl.types import Media, ToolResult

LARGEST = 1e100
"""Of a metric that is kept: those of all calls are summed up."""
TOOL_REWARD = "tool_reward"
"""Metric that holds what `execute` gave as reward, whether it counts or not."""


def from_execute(returned: Any, tool: str, *, counts: bool) -> ToolResult:
    """Of `BaseTool.execute`: `(response, reward, metrics)`, or less of it. A response is a ToolResponse, a text, or a
    dict with some of `text`, `image` and `video`. Raises TypeError for a tuple of another length."""
    response, reward, metrics = _parts(returned, tool)
    return _result(response, number(reward), metrics, counts=counts)


def from_function(returned: Any, tool: str, *, counts: bool) -> ToolResult:
    """Of a `@function_tool`: the same forms, but a dict is JSON text, and no reward is 0. Raises TypeError or
    ValueError for a reward that is no number, as verl does."""
    response, reward, metrics = _parts(returned, tool)
    if isinstance(response, Mapping):
        response = json.dumps(plain(response), ensure_ascii=False)
    return _result(response if response is not None else "None", float(reward or 0.0), metrics, counts=counts)


def number(value: Any) -> float | None:
    """A number as float; None for anything else: verl's own tools return texts and lists for rewards."""
    value = plain(value)
    return float(value) if isinstance(value, numbers.Real) else None


def shown_parts(response: Any) -> tuple[str, tuple[Media, ...]] | None:
    """Text and media of a ToolResponse, this package's or verl's own, or of a dict like one; None for anything else."""
    names = ("text", "image", "video")
    if isinstance(response, Mapping):
        fields = dict(response) if response and set(response) <= set(names) else None
    else:
        fields = {name: getattr(response, name) for name in names if hasattr(response, name)}
        fields = fields if len(fields) == len(names) else None
    if fields is None:
        return None
    kinds: tuple[Literal["image", "video"], ...] = ("image", "video")
    media = [Media(kind, data) for kind in kinds for data in _listed(fields.get(kind)) if data is not None]
    return "" if fields.get("text") is None else str(fields["text"]), tuple(media)


def _parts(returned: Any, tool: str) -> tuple[Any, Any, Any]:
    if not isinstance(returned, tuple):
        return returned, None, None
    if not 1 <= len(returned) <= 3:
        raise TypeError(
            f"tool {tool!r} returned a tuple of {len(returned)} values, expected (response,), (response, reward) or "
            "(response, reward, metrics)"
        )
    return (*returned, None, None)[:3]


def _result(response: Any, reward: float | None, metrics: Any, *, counts: bool) -> ToolResult:
    shown = metrics_of(metrics)
    if reward is not None:
        shown[TOOL_REWARD] = reward
    text, media = shown_parts(response) or (_as_text(response), ())
    return ToolResult(text, media=media, reward=reward if counts else None, metrics=shown)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return json.dumps(plain(value), ensure_ascii=False, default=str)
    return str(value)


def _listed(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else (value,)


def metrics_of(values: Any) -> dict[str, float]:
    """Those values of a mapping that are numbers which can be summed up. verl's tools also put texts there."""
    given = plain(values) if isinstance(values, Mapping) else {}
    return {
        key: float(value)
        for key, value in given.items()
        if isinstance(value, int | float) and abs(value) <= LARGEST  # Not of NaN.
    }
