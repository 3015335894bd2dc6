"""The layer that answers a call in time, also for tools that don't let themselves be stopped."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from toolrl.config.tool_policy import DEFAULT_TIMEOUT
from toolrl.errors import ToolTimeoutError
from toolrl.tools import cancellation
from toolrl.tools.invocation import Invocation, Next
from toolrl.tools.loop_watch import run_component
from toolrl.types import ToolResult

_log = logging.getLogger(__name__)


class TimeLimit:
    """Stops a call that takes too long. One that goes on all the same is left to itself, and noted as a stray."""

    def __init__(self, seconds: float | None) -> None:
        """None for the tool's own limit, else DEFAULT_TIMEOUT."""
        self._seconds = seconds

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        seconds = self._seconds or invocation.traits.timeout or DEFAULT_TIMEOUT
        call = run_component(f"tool {invocation.shown!r}", following, invocation, seconds=seconds)
        try:
            if invocation.traits.inline:  # It can't be stopped, so it needs no task of its own.
                return await call
            return await cancellation.stoppable(call, functools.partial(_left, invocation), seconds)
        except cancellation.TooLateError:
            raise ToolTimeoutError(
                f"The tool {invocation.shown!r} gave no answer within {seconds:g} s and was stopped."
            ) from None


def _left(invocation: Invocation, work: asyncio.Task[Any]) -> None:
    invocation.strays.append(work)
    _log.warning(
        "tool %r: a call was cancelled and didn't end within %g s; it is left to itself. "
        "Don't catch asyncio.CancelledError in a tool, or raise it again.",
        invocation.shown,
        cancellation.CLEANUP_SECONDS,
    )
