"""How many calls the sandbox gets at once: of this process, and of the whole run.

`num_workers` bounds one process. `rate_limit` bounds all processes together, under the sandbox's address as its name:
where rollout workers sample, all wait in one queue of the cluster; otherwise this process is the whole run. Another
limit under the same name is an error. A call takes its place in its own process first, so that a call that
waits there holds no permit of the run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from toolrl.tools.rate_limits import ConcurrencyLimit, Limiter


class Places:
    """The places of one tool. `start` before the first call."""

    def __init__(
        self,
        name: str,
        num_workers: int,
        rate_limit: int | None,
        shared_limit: Callable[[str, int], Awaitable[Limiter]] | None,
    ) -> None:
        """`rate_limit` None for none; `name` is what other processes know it by; `shared_limit` is that of the tool's
        BuildContext."""
        self._name = name
        self._rate_limit = rate_limit
        self._shared_limit = shared_limit
        self._own = ConcurrencyLimit(num_workers)
        self._shared: Limiter | None = None

    async def start(self) -> None:
        """Get the run's limit. Raises ConfigError where another tool asks for another one."""
        if self._rate_limit is None:
            return
        if self._shared_limit is not None:
            self._shared = await self._shared_limit(self._name, self._rate_limit)
        elif self._shared is None:
            self._shared = ConcurrencyLimit(self._rate_limit)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a place, and keep it inside the block. First come, first served."""
        own = await self._own.acquire()
        try:
            shared = await self._shared.acquire() if self._shared is not None else None
            try:
                yield
            finally:
                if shared is not None:
                    shared.release()
        finally:
            own.release()
