"""Traits of a tool, and the names that it may have."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """What the policy may know of a tool besides its spec. A session gives it by an optional `traits(name)`."""

    pure: bool = False
    """The same arguments give the same answer, and nothing else happens: answers may be cached."""
    timeout: float | None = None
    """Seconds a call may take, unless the config sets it."""
    idempotent: bool = False
    """Calling twice does no more than calling once, so that a call which timed out may be made again. What is pure is
    idempotent."""
    endpoint: str | None = None
    """What the tool depends on: a server's address, a service's name. Breakers and limits are kept for each endpoint;
    None for the name that the config calls the toolset."""
    process: str | None = None
    """For a tool that runs in a process: `module:attribute`, where a worker finds it."""
    per_episode: bool = False
    """Answers also depend on the episode, so that a cache must not carry them from one to another."""

    @property
    def repeatable(self) -> bool:
        """True where a call whose outcome is unknown may be repeated."""
        return self.pure or self.idempotent


def check_tool_name(name: str) -> None:
    """Raises ValueError for a name that chat templates and parsers can't carry."""
    if not _NAME.match(name):
        raise ValueError(
            f"tool name {name!r}: use at most 64 letters, digits, '_', '-' or '.', starting with a letter or '_'"
        )
