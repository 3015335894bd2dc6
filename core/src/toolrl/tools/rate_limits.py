"""Two limits, and what both are for one endpoint.

- A `ConcurrencyLimit` has so many permits. It bounds how much runs at once.
- A `RateLimit` is a bucket that so many tokens a second fall into, up to `burst`. It bounds how often something begins,
  however long that takes.

Both serve first come, first served, and a caller that is cancelled while it waits leaves the queue.

Objects belong to one event loop and its clock; nothing here is for several threads. The same limits over several
processes and nodes are behind `toolrl.tools.endpoints.ClusterLimits`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """The limits of one name. Two settings under one name are an error."""

    concurrency: int | None = None
    """Permits; None for no limit."""
    per_second: float | None = None
    """Tokens a second; None for no limit."""
    burst: int = 1
    """Tokens that gather while no caller takes one: so many may begin at once."""
    lease: float = 30.0
    """Seconds after which a dead holder's permit comes back."""

    def __str__(self) -> str:
        parts = [] if self.concurrency is None else [f"concurrency {self.concurrency}"]
        parts += [] if self.per_second is None else [f"rate {self.per_second:g} per second with burst {self.burst}"]
        return f"{', '.join(parts) or 'no limit'} and lease {self.lease:g} s"


class Permit:
    """The right to go on. Held until `release`, which may be called more than once."""

    def __init__(self, give_back: Callable[[], None] | None = None) -> None:
        """`give_back` frees it again; None for a permit of no limit."""
        self._give_back = give_back
        self._timer: asyncio.TimerHandle | None = None

    def release(self) -> None:
        """Give it back; the next in the queue gets it."""
        if self._timer is not None:
            self._timer.cancel()
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def lease(self, seconds: float) -> None:
        """From now on it comes back by itself after so many seconds, unless this is called again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._give_back is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.release)


class Limiter(Protocol):
    """Hands out permits."""

    async def acquire(self) -> Permit:
        """Wait for a permit. Cancelling this leaves the queue. Raises ToolUnavailableError where the limiter can't be
        reached."""
        ...


class ConcurrencyLimit:
    """So many permits, given in the order in which they were asked for: a semaphore that can be asked without
    waiting."""

    def __init__(self, permits: int) -> None:
        self._free = permits
        self._queue: deque[asyncio.Future[None]] = deque()

    def claim(self) -> Permit | None:
        """A permit at once, or None where all are taken."""
        if not self._free:
            return None
        self._free -= 1
        return Permit(self._free_one)

    async def acquire(self) -> Permit:
        """Wait for a permit."""
        if (permit := self.claim()) is not None:
            return permit
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # Given, and the cancellation came before the caller could know.
                self._free_one()
            raise
        return Permit(self._free_one)

    def _free_one(self) -> None:
        """A permit is free: the next in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class RateLimit:
    """A bucket of tokens, which starts full."""

    def __init__(self, per_second: float, burst: int = 1) -> None:
        self._interval = 1 / per_second
        self._gathered = (burst - 1) * self._interval
        self._next = -math.inf
        """When a token would fall, had none gathered before."""
        self._queue = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a token, and take it."""
        clock = asyncio.get_running_loop().time
        async with self._queue:
            await asyncio.sleep(max(self._next - self._gathered - clock(), 0))
            self._next = max(self._next, clock()) + self._interval


class LocalLimiter:
    """Both limits of one name, within this process. The permit comes first, so that a call begins when its token falls:
    one that took a token and then queued would begin in a bunch with others."""

    def __init__(self, spec: LimitSpec) -> None:
        self._concurrency = ConcurrencyLimit(spec.concurrency) if spec.concurrency is not None else None
        self._rate = RateLimit(spec.per_second, spec.burst) if spec.per_second is not None else None

    async def acquire(self) -> Permit:
        """Wait for a permit and then for a token."""
        permit = await self._concurrency.acquire() if self._concurrency is not None else Permit()
        if self._rate is not None:
            try:
                await self._rate.take()
            except BaseException:
                permit.release()
                raise
        return permit

    def claim(self) -> Permit | None:
        """A permit at once and without a token, for work that began already; None where none is left."""
        return self._concurrency.claim() if self._concurrency is not None else Permit()
