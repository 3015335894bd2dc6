"""Two limits, and what both are for one endpoint.

- A `ConcurrencyLimit` has so many permits; who holds one may work, and gives it back. It bounds how much runs at once.
- A `RateLimit` is a bucket that so many tokens a second fall into, up to `burst`; who takes one may begin. It bounds
  how often something begins, however long that takes.

Both serve first come, first served: who comes while others wait waits behind them. Whoever is cancelled while waiting
leaves the queue, and what was meant for it goes to the next. A permit may be leased: then it comes back by itself
unless its holder renews it, so that one that died holds nothing for ever.

Objects belong to one event loop and its clock; nothing here is for several threads. The same limits over several
processes and nodes are in `toolrl.cluster.limiter`, which uses these.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

_ALMOST = 1e-9
"""Tokens are added up in floating point."""
_SHORTEST_WAIT = 1e-6
"""Seconds. A token of which less is missing than the clock can show would be waited for in a busy loop."""


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """What is asked for under one name. Whoever asks for something else under the same name gets an error."""

    concurrency: int | None = None
    """Permits; None for no limit."""
    per_second: float | None = None
    """Tokens a second; None for no limit."""
    burst: int = 1
    """Tokens that gather while nobody takes one: so many may begin at once."""
    lease: float = 30.0
    """Seconds after which a dead holder's permit comes back."""

    def __str__(self) -> str:
        parts = [] if self.concurrency is None else [f"concurrency {self.concurrency}"]
        parts += [] if self.per_second is None else [f"rate {self.per_second:g} per second with burst {self.burst}"]
        return f"{', '.join(parts) or 'no limit'} and lease {self.lease:g} s"


class Permit(Protocol):
    """The right to go on. Held until `release`, which may be called more than once."""

    def release(self) -> None:
        """Give it back."""
        ...

    def lease(self, seconds: float) -> None:
        """From now on it comes back by itself after so many seconds, unless this is called again."""
        ...


class Limiter(Protocol):
    """Whatever makes one wait for a permit."""

    async def acquire(self) -> Permit:
        """Wait for one's turn. Cancelling this leaves the queue. Raises ToolUnavailableError where the limiter can't be
        reached."""
        ...


class ConcurrencyLimit:
    """So many permits, given in the order in which they were asked for."""

    def __init__(self, permits: int) -> None:
        if permits < 1:
            raise ValueError(f"a concurrency limit needs at least one permit, got {permits}")
        self.permits = permits
        self._free = permits
        self._queue: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def free(self) -> int:
        """Permits that nobody holds."""
        return self._free

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def claim(self) -> HeldPermit | None:
        """A permit at once, or None where there is none that nobody waits for."""
        if not self._free or self._queue:
            return None
        self._free -= 1
        return HeldPermit(self)

    async def acquire(self) -> HeldPermit:
        """Wait for a permit."""
        permit = self.claim()
        if permit is not None:
            return permit
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if _was_given(turn):
                self._give_back()
            else:
                self._queue.pop(turn, None)
            raise
        return HeldPermit(self)

    def _give_back(self) -> None:
        while self._queue:
            turn, _ = self._queue.popitem(last=False)
            # One that was cancelled has yet to wake and leave the queue; it must not get the permit.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _was_given(turn: asyncio.Future[None]) -> bool:
    """True where it was somebody's turn, and a cancellation came before he could know."""
    return turn.done() and not turn.cancelled()


class HeldPermit:
    """A permit of a ConcurrencyLimit."""

    __slots__ = ("_limit", "_timer")

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit: ConcurrencyLimit | None = limit
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> bool:
        """False after it was given back, or its lease ran out."""
        return self._limit is not None

    def release(self) -> None:
        """Give it back; the next in the queue gets it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limit, self._limit = self._limit, None
        if limit is not None:
            limit._give_back()

    def lease(self, seconds: float) -> None:
        """From now on it comes back by itself after so many seconds, unless this is called again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._limit is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.release)


class RateLimit:
    """A bucket of tokens, taken in the order in which they were asked for. It starts full."""

    def __init__(self, per_second: float, burst: int = 1) -> None:
        if not 0 < per_second < math.inf or burst < 1:
            raise ValueError(
                f"a rate limit needs a finite rate above 0 and a burst of at least 1, got {per_second} and {burst}"
            )
        self.per_second = per_second
        self.burst = burst
        self._tokens = float(burst)
        self._at: float | None = None
        """When `_tokens` was true, by the loop's clock."""
        self._queue: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    async def take(self) -> None:
        """Wait for a token, and take it."""
        loop = asyncio.get_running_loop()
        self._fill(loop)
        if self._tokens >= 1 - _ALMOST and not self._queue:
            self._tokens -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._queue[turn] = None
        self._wait(loop)
        try:
            await turn
        except asyncio.CancelledError:
            if _was_given(turn):
                self._tokens = min(self._tokens + 1, self.burst)
                self._serve(loop)
            else:
                self._queue.pop(turn, None)
            raise

    def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if self._at is not None:
            self._tokens = min(self._tokens + (now - self._at) * self.per_second, self.burst)
        self._at = now

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Come back when the next token is there."""
        if self._timer is None and self._queue:
            missing = max(1 - self._tokens, 0.0)
            self._timer = loop.call_later(max(missing / self.per_second, _SHORTEST_WAIT), self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._serve(loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._fill(loop)
        while self._queue and self._tokens >= 1 - _ALMOST:
            turn, _ = self._queue.popitem(last=False)
            if not turn.done():
                self._tokens -= 1
                turn.set_result(None)
        self._wait(loop)


class LocalLimiter:
    """Both limits of one name, within this process. The permit comes first, so that a call begins when its token falls:
    one that took a token and then queued would begin in a bunch with others."""

    def __init__(self, spec: LimitSpec) -> None:
        self.spec = spec
        self.concurrency = ConcurrencyLimit(spec.concurrency) if spec.concurrency is not None else None
        self.rate = RateLimit(spec.per_second, spec.burst) if spec.per_second is not None else None

    async def acquire(self) -> Permit:
        """Wait for a permit and then for a token."""
        permit: Permit = await self.concurrency.acquire() if self.concurrency is not None else NO_PERMIT
        if self.rate is not None:
            try:
                await self.rate.take()
            except BaseException:
                permit.release()
                raise
        return permit

    def claim(self) -> Permit | None:
        """A permit at once and without a token, for work that began before this did; None where none is left."""
        return self.concurrency.claim() if self.concurrency is not None else NO_PERMIT


class _NoPermit:
    """Where only the rate is limited there is nothing to give back."""

    def release(self) -> None:
        """Nothing."""

    def lease(self, seconds: float) -> None:
        """Nothing."""


NO_PERMIT = _NoPermit()
