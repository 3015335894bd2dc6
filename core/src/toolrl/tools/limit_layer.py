"""Waiting for one's turn: the layer that takes a permit for each attempt of a call, and gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolrl.errors import ToolLimitError
from toolrl.tools.invocation import Invocation, Next
from toolrl.tools.processes import PROCESSES
from toolrl.tools.rate_limits import Limiter, Permit
from toolrl.tools.threads import Job, noting_jobs
from toolrl.types import ToolResult


class Limited:
    """Takes a permit of the endpoint, and a free process for a tool that runs in one.

    A permit is held as long as the endpoint may be busy with the call. Where a call was given up and its thread runs
    on, that is until the thread ends, and no longer than the lease.
    """

    def __init__(self, limiters: dict[str, Limiter], queue_timeout: float, lease: float) -> None:
        """`limiters` are those of the endpoints that are in use, and grow."""
        self._limiters = limiters
        self._queue_timeout = queue_timeout
        self._lease = lease

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        limiter = self._limiters.get(invocation.endpoint)
        traits = invocation.traits
        if limiter is None and traits.inline and traits.process is None:  # It leaves nothing behind.
            return await following(invocation)
        invocation.strays = []
        with noting_jobs() as invocation.jobs:
            if limiter is None:
                return await self._in_process(invocation, following)
            permit: Permit = await self._wait(invocation, limiter.acquire())
            try:
                return await self._in_process(invocation, following)
            finally:
                leave(permit, invocation.jobs, invocation.strays, self._lease)

    async def _in_process(self, invocation: Invocation, following: Next) -> ToolResult:
        if invocation.traits.process is None:
            return await following(invocation)
        worker = await self._wait(invocation, PROCESSES.reserve(invocation.traits.process))
        with worker:
            return await following(invocation)

    async def _wait(self, invocation: Invocation, turn: Any) -> Any:
        clock = asyncio.get_running_loop().time
        begin, limit = clock(), asyncio.timeout(self._queue_timeout)
        try:
            async with limit:
                return await turn
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolLimitError(
                f"The tool {invocation.shown!r} is busy: there was no place for this call within "
                f"{self._queue_timeout:g} s, and it didn't run. Go on without it, or try again later."
            ) from None
        finally:
            invocation.note("queue_seconds", clock() - begin)


def leave(permit: Permit, jobs: Sequence[Job[Any]], strays: Sequence[asyncio.Task[Any]], lease: float) -> None:
    """Give a permit back when the last of what was begun under it has ended, at the latest after the lease."""
    busy = [job for job in jobs if not job.ended]
    left = [task for task in strays if not task.done()]
    waiting = len(busy) + len(left)
    if not waiting:
        permit.release()
        return
    permit.lease(lease)

    def ended(*_: Any) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            permit.release()

    for job in busy:
        job.when_ended(ended)
    for task in left:
        task.add_done_callback(ended)
