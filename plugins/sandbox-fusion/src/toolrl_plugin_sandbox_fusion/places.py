"""How many calls the sandbox gets at once: of this process, and of the whole run.

`num_workers` bounds one process. `rate_limit` bounds all processes together, under a name that is the sandbox's
address: on a Ray cluster the permits are kept by one actor, so that every process on every node waits in one queue;
without Ray this process is the whole run, and keeps them itself. Who asks for another limit under the same name gets an
error. A call takes its place in its own process first, so that no permit of the run is held by one that waits.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Literal

from toolrl.tools.endpoints import ClusterLimits, Endpoints
from toolrl.tools.options import PolicyOptions
from toolrl.tools.rate_limits import ConcurrencyLimit, Limiter


class Places:
    """The places of one tool. `start` before the first call, `stop` after the last."""

    def __init__(self, name: str, num_workers: int, rate_limit: int | None) -> None:
        """`rate_limit` None for none; `name` is what it is known by to other processes."""
        self._name = name
        self._rate_limit = rate_limit
        self._own = ConcurrencyLimit(num_workers)
        self._shared: Limiter | None = None
        self._run: RunLimits | None = None

    async def start(self) -> None:
        """Meet the others. Raises ConfigError where they ask for another limit."""
        if self._rate_limit is not None and self._run is None:
            self._run = RunLimits.of_this_loop()
            self._run.users += 1
            self._shared = await self._run.limiter(self._name, self._rate_limit)

    async def stop(self) -> None:
        """Leave them."""
        run, self._run, self._shared = self._run, None, None
        if run is not None:
            await run.release()

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


class RunLimits:
    """The limits that the tools of one event loop share with the rest of the run."""

    _of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, RunLimits]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self.users = 0
        self._endpoints = Endpoints(connect_to_cluster)

    @classmethod
    def of_this_loop(cls) -> RunLimits:
        return cls._of_loops.setdefault(asyncio.get_running_loop(), cls())

    async def limiter(self, name: str, permits: int) -> Limiter:
        """The limiter of this name. Raises ConfigError where its name is taken by another limit."""
        options = PolicyOptions(concurrency=permits, limit_scope=scope(), limit_name=name)
        return await self._endpoints.limiter(name, options)

    async def release(self) -> None:
        """One user less; the last one leaves the cluster's limits."""
        self.users -= 1
        if self.users == 0:
            await self._endpoints.close()


def scope() -> Literal["local", "cluster"]:
    """Whether this process is one of a Ray cluster."""
    ray = sys.modules.get("ray")  # A process of a cluster has imported it.
    return "cluster" if ray is not None and ray.is_initialized() else "local"


def connect_to_cluster() -> ClusterLimits:
    """The limits that the Ray cluster of this process shares."""
    from toolrl.cluster.limiter import RayLimits

    return RayLimits()
