"""What a tool says of itself, and what it may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """What the policy may know of a tool besides its spec. A session gives it by an optional `traits(name)`."""

    pure: bool = False
    """The same arguments give the same answer: identical calls of one turn run once."""
    timeout: float | None = None
    """Seconds a call may take, unless the config sets it."""


def check_tool_name(name: str) -> None:
    """Raises ValueError for a name that chat templates and parsers can't carry."""
    if not _NAME.match(name):
        raise ValueError(
            f"tool name {name!r}: use at most 64 letters, digits, '_', '-' or '.', starting with a letter or '_'"
        )
