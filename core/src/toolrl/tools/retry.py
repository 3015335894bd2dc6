"""Retries: exponential back-off with jitter, and the server's own `Retry-After`.

Only an error that the tool marks as transient is retried, and a time-out of a tool for which calling twice does no
harm. A crash never is: its effects are unknown. The jitter is a function of the call, so that a run repeats; libraries
draw theirs from the process's random numbers.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

from toolrl.config.tool_policy import RetryOptions
from toolrl.errors import ToolError, ToolTimeoutError
from toolrl.tools.invocation import Invocation
from toolrl.types import ToolResult

Attempt = Callable[[Invocation], Awaitable[ToolResult]]
_LONGEST = 7 * 24 * 3600.0


async def with_retries(options: RetryOptions, call: Invocation, attempt: Attempt) -> ToolResult:
    """The result of `attempt`, made again after failures that may pass."""
    clock = asyncio.get_running_loop().time
    begin, count = clock(), 1
    call.note("retries", 0)
    while True:
        try:
            return await attempt(call)
        except ToolError as error:
            if count == options.attempts or not _may_pass(error, options, call):
                raise
            wait = pause(options, count, error.retry_after, _chance(call, count))
            if clock() - begin + wait > options.max_seconds:
                raise
        await asyncio.sleep(wait)
        count += 1
        call.note("retries")


def pause(options: RetryOptions, attempt: int, retry_after: float | None, chance: float) -> float:
    """Seconds to wait after so many attempts; `chance` is in [0, 1). Never less than the server asks for."""
    # 2**60 of anything is above any max_delay.
    grown = min(options.first_delay * 2.0 ** min(attempt - 1, 60), options.max_delay)
    wait = grown * (1.0 - options.jitter * chance)
    asked = retry_after or 0.0
    # All callers that got the same number would come back at the same moment.
    return max(wait, asked + options.first_delay * options.jitter * chance) if asked > 0 else wait


def _may_pass(error: ToolError, options: RetryOptions, call: Invocation) -> bool:
    if isinstance(error, ToolTimeoutError):
        return options.on_timeout and call.traits.repeatable
    return error.transient


def _chance(call: Invocation, attempt: int) -> float:
    """In [0, 1), of the call itself, whatever else is in flight."""
    return random.Random(f"{call.episode}/{call.call.id}/{call.call.name}/{attempt}").random()


def parse_retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for, a week at most; None where it isn't a number."""
    try:
        seconds = float((value or "").strip())
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST)
