"""The layer that answers a call in time, also for tools that don't let themselves be stopped."""

from __future__ import annotations

from toolrl.config.tool_policy import DEFAULT_TIMEOUT
from toolrl.errors import ToolTimeoutError
from toolrl.tools.cancellation import TooLateError
from toolrl.tools.invocation import Invocation, Next
from toolrl.tools.loop_watch import run_component, run_stoppable
from toolrl.types import ToolResult


class TimeLimit:
    """Stops a call that takes too long. One that goes on all the same is left to itself, and noted as a stray."""

    def __init__(self, seconds: float | None) -> None:
        """None for the tool's own limit, else DEFAULT_TIMEOUT."""
        self._seconds = seconds

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        seconds = self._seconds or invocation.traits.timeout or DEFAULT_TIMEOUT
        name, left = f"tool {invocation.shown!r}", invocation.strays.append
        try:
            if invocation.traits.inline:  # It can't be stopped, so it needs no task of its own.
                return await run_component(name, following, invocation, seconds=seconds)
            return await run_stoppable(name, following, invocation, seconds=seconds, left=left)
        except TooLateError:
            raise ToolTimeoutError(
                f"The tool {invocation.shown!r} gave no answer within {seconds:g} s and was stopped."
            ) from None
