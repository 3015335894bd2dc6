"""What is known of one life of a connection: whether it is lost, or in doubt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


class LifeSignals:
    """Set by the transport and the calls of one life, read by its owner."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it is lost; empty while it isn't known to be."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no answer will come any more."""
        self.status = 0
        """Of the first HTTP response that was an error; 0 where there was none."""
        self.doubted = ""
        """Why it was first in doubt; empty where it never was."""
        self.doubts = 0
        """How many there are that no answer has dispelled."""
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()

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
        self._wake.set()

    def refused(self, status: int) -> None:
        """The first status counts: what follows is tried because of it."""
        self.status = self.status or status

    def dispelled(self, doubts: int) -> None:
        """So many doubts are older than an answer that came."""
        self.doubts -= doubts

    def tools_changed(self) -> None:
        """Its list is asked for again, soon."""
        self._changed.set()

    def close(self) -> None:
        """No answer will come any more."""
        if not self.over.done():
            self.over.set_result(None)
        self._wake.set()

    async def wait_for(self, work: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Until the work is done, no answer will come any more, or the time is over."""
        both: list[asyncio.Future[Any]] = [work, self.over]
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def woken(self, rest: float) -> None:
        """Until there is something to look at; a changed list waits so many seconds after the last look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await self._wake.wait()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._wake, self._changed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()
        self._changed.clear()
