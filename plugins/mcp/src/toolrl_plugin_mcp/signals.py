"""What is known of one life of a connection: whether it is lost, or in doubt."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import MCPError


class LifeSignals:
    """Set by the transport and the calls of one life, read by its owner."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it is lost; empty while it isn't known to be."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no answer will come any more."""
        self.wake = asyncio.Event()
        """Set when there is something to look at: a loss, or a doubt."""
        self.status = 0
        """Of the first HTTP response that was an error; 0 where there was none."""
        self.doubted = ""
        """Why it was first in doubt; empty where it never was."""
        self.doubts = 0
        """How many there are that no answer has dispelled."""

    @property
    def good(self) -> bool:
        """Whether a call may be made."""
        return not self.doubts and not self.over.done()

    def lost(self, reason: str) -> None:
        """The first reason counts: later ones follow from it."""
        if not self.over.done():
            self.reason = reason or "the connection was closed"
            self.close()

    def doubt(self, reason: str) -> None:
        """It may be lost, or hang: that is found out before the next call."""
        self.doubts += 1
        self.doubted = self.doubted or reason
        self.wake.set()

    def refused(self, status: int) -> None:
        """The first status counts: what follows is tried because of it."""
        self.status = self.status or status

    def close(self) -> None:
        """No answer will come any more."""
        if not self.over.done():
            self.over.set_result(None)
        self.wake.set()

    def with_doubt(self, reason: str) -> str:
        """The reason of an end, with the first doubt and status where they say more."""
        if self.doubted not in reason:
            reason = self.doubted if reason in self.doubted else f"{reason} ({self.doubted})"
        if self.status and str(self.status) not in reason:
            reason += f" (HTTP {self.status})"
        return reason

    async def wait_for(self, work: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Until the work is done, no answer will come any more, or the time is over."""
        both: list[asyncio.Future[Any]] = [work, self.over]
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def in_words(error: BaseException) -> str:
    """An exception in words; of a group the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.error.message
    # httpx ends its message with a link to an explanation of the status.
    text = str(error).partition("\nFor more information check: ")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
