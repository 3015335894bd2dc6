"""The layer that takes a permit for each attempt of a call, and releases it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolLimitError
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.invocation import Invocation, Next
from toolrl.tools.process_tools import PROCESSES
from toolrl.tools.rate_limits import Permit
from toolrl.tools.threads import collecting_jobs
from toolrl.types import ToolResult

T = TypeVar("T")


class Limited:
    """Takes a permit of the endpoint, and a free process for a tool that runs in one.

    A permit is held as long as the endpoint may be busy with the call. Where a call was given up and its thread runs
    on, that is until the thread ends, and no longer than the lease.
    """

    def __init__(self, endpoints: Endpoints, options: PolicyOptions) -> None:
        self._endpoints = endpoints
        self._options = options

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        if not self._options.limited:
            return await self._in_process(invocation, following)
        limiter = await self._endpoints.limiter(invocation.endpoint, self._options)
        invocation.strays = []
        with collecting_jobs() as invocation.jobs:
            permit = await self._queue(invocation, limiter.acquire())
            try:
                return await self._in_process(invocation, following)
            finally:
                _leave(permit, invocation, self._options.limit_lease)

    async def _in_process(self, invocation: Invocation, following: Next) -> ToolResult:
        if invocation.traits.process is None:
            return await following(invocation)
        with await self._queue(invocation, PROCESSES.reserve(invocation.traits.process)):
            return await following(invocation)

    async def _queue(self, invocation: Invocation, turn: Awaitable[T]) -> T:
        clock = asyncio.get_running_loop().time
        begin, limit = clock(), asyncio.timeout(self._options.queue_timeout)
        try:
            async with limit:
                return await turn
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolLimitError(
                f"The tool {invocation.shown!r} is busy: there was no place for this call within "
                f"{self._options.queue_timeout:g} s, and it didn't run. Go on without it, or try again later."
            ) from None
        finally:
            invocation.note("queue_seconds", clock() - begin)


def _leave(permit: Permit, invocation: Invocation, lease: float) -> None:
    """Release a permit when all that was begun under it has ended, at the latest after the lease."""
    jobs = [job for job in invocation.jobs if not job.ended]
    strays = [task for task in invocation.strays if not task.done()]
    waiting = len(jobs) + len(strays)
    if not waiting:
        permit.release()
        return
    permit.lease(lease)

    def ended(*_: Any) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            permit.release()

    for job in jobs:
        job.when_ended(ended)
    for task in strays:
        task.add_done_callback(ended)
