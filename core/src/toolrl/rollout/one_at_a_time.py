"""Whose turn it is to use a component in a thread: one call at a time, in the order in which they came.

A function that runs in a thread can't be stopped. One that has had its time keeps the component all the same, until it
returns: whoever comes meanwhile is turned away rather than kept waiting for what may never end.
"""

from __future__ import annotations

import asyncio
from collections import deque


class StuckError(Exception):
    """An earlier call has had its time and still runs."""


class OneAtATime:
    """Used on one event loop at a time."""

    def __init__(self) -> None:
        self._taken = False
        self._stuck = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin(self) -> None:
        """Wait for the turn, which `end` gives back. Raises StuckError."""
        if self._stuck:
            raise StuckError
        if not self._taken:
            self._taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The turn was given, and the cancellation came before that could be known.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.end()
            raise

    def end(self) -> None:
        """The call has returned: the next one's turn."""
        self._stuck = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False

    def give_up(self) -> None:
        """The call that has the turn has had its time. `end` comes when it returns, if ever."""
        self._stuck = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(StuckError())
