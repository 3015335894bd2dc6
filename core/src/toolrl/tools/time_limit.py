"""A time limit that holds also for tools which don't let themselves be stopped.

The call runs as a task of its own. After its time, or when its episode is cancelled, it is cancelled and gets a few
seconds to clean up. A task that goes on all the same is left to itself, and the call is answered.

Where more synchronous calls are under way than the pool has threads, the last ones wait for one. That is no time of
theirs: a call that never began must not be told, nor its endpoint be blamed, for having taken too long.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from toolrl.errors import ToolLimitError, ToolTimeoutError
from toolrl.tools import cancellation
from toolrl.tools.invocation import Invocation, Next
from toolrl.tools.loop_watch import Watched
from toolrl.tools.options import DEFAULT_TIMEOUT
from toolrl.tools.promptly import until
from toolrl.types import ToolResult

_LOOK_SECONDS = 0.1
"""How often a call that waits for a thread is looked at, at most."""

_log = logging.getLogger(__name__)


class TimeLimit:
    """Stops a call that takes too long."""

    def __init__(self, seconds: float | None, queue_timeout: float) -> None:
        """`queue_timeout`: seconds that a call may wait for a thread, in addition to its own."""
        self._seconds = seconds
        self._queue_timeout = queue_timeout

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        seconds = self._seconds or invocation.traits.timeout or DEFAULT_TIMEOUT
        call = Watched(f"tool {invocation.shown!r}", following(invocation), seconds)
        if invocation.traits.inline:  # It can't be stopped, so it needs no task of its own.
            return _in_time(await call, call, invocation, seconds)
        work = asyncio.create_task(_outcome(call))
        try:
            await self._wait(work, invocation, seconds, call)
        except asyncio.CancelledError:
            await cancellation.stop(work, functools.partial(_left, invocation))
            raise
        if not work.done():
            jobs = invocation.jobs
            queued = any(job.queued for job in jobs) and not any(job.begun for job in jobs)
            await cancellation.stop(work, functools.partial(_left, invocation))
            if queued:
                raise ToolLimitError(
                    f"The tool {invocation.shown!r} is busy: there was no thread for this call within "
                    f"{self._queue_timeout:g} s. Go on without it, or try again later."
                )
            raise ToolTimeoutError(
                f"The tool {invocation.shown!r} gave no answer within {seconds:g} s and was stopped."
            )
        outcome = work.result()
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # Or it would hold this frame, and the frame it, until the collector looks.
        return _in_time(outcome, call, invocation, seconds)

    async def _wait(
        self, work: asyncio.Task[Any], invocation: Invocation, seconds: float, call: Watched[ToolResult]
    ) -> None:
        """Until the call has ended, or had its time. Where another call blocked the event loop as this one's time
        ended, it gets as much again, once: its answer may have arrived, and nothing could look."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        left = seconds
        forgiven = False
        while left > 0:
            due = clock() + left
            await until(work, left)
            if work.done():
                return
            left = end + min(sum(job.waited for job in invocation.jobs), self._queue_timeout) - clock()
            if left > 0 and any(job.queued for job in invocation.jobs):
                left = max(left, _LOOK_SECONDS)
            blocked = clock() - due
            if left <= 0 and blocked > _LOOK_SECONDS and not (call.overran or forgiven):
                left, forgiven = blocked, True


def _in_time(result: ToolResult, call: Watched[ToolResult], invocation: Invocation, seconds: float) -> ToolResult:
    """The result of a call. Raises ToolTimeoutError for one that blocked the event loop past its limit."""
    if call.overran:
        raise ToolTimeoutError(f"The tool {invocation.shown!r} took longer than {seconds:g} s.")
    return result


async def _outcome(call: Watched[ToolResult]) -> ToolResult | BaseException:
    """What the call gave or raised. A task must not end with SystemExit, which would end the event loop."""
    try:
        return await call
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
        return error


def _left(invocation: Invocation, work: asyncio.Task[Any]) -> None:
    invocation.strays.append(work)
    _log.warning(
        "tool %r: a call was cancelled and didn't end within %g s; it is left to itself. "
        "Don't catch asyncio.CancelledError in a tool, or raise it again.",
        invocation.shown,
        cancellation.CLEANUP_SECONDS,
    )
