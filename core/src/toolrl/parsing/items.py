"""A turn's items: their order, how many there may be, and their answers as chat messages."""

from __future__ import annotations

from collections.abc import Sequence

from toolrl.protocols import tool_messages as tool_messages
from toolrl.types import CallError, ToolCall

MAX_ITEMS = 256
"""Calls and errors of one turn; what comes after is one error `too_many_calls`."""


def too_many(text: str, start: int) -> CallError:
    """The error that stands for everything from `start` on."""
    message = f"Only {MAX_ITEMS} tool calls are read in one turn; what came after them was not run."
    return CallError("too_many_calls", message, span=(start, len(text)), raw=text[start:])


def in_order(
    items: Sequence[ToolCall | CallError], more: Sequence[ToolCall | CallError], text: str
) -> tuple[ToolCall | CallError, ...]:
    """Both lists as one in document order, within `MAX_ITEMS`."""
    merged = sorted((*items, *more), key=lambda item: item.span)
    if len(merged) > MAX_ITEMS:
        merged[MAX_ITEMS:] = [too_many(text, merged[MAX_ITEMS].span[0])]
    return tuple(merged)
