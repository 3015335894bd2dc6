"""Retries: exponential back-off with jitter, and the server's own `Retry-After`.

Only an error that the tool marks as transient is retried, and a time-out of a tool for which calling twice does no
harm. A crash never is: its effects are unknown. The jitter is a function of the call, so that a run repeats; libraries
draw theirs from the process's random numbers.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

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


def pause(options: RetryOptions, attempt: int, retry_after: Any, chance: float) -> float:
    """Seconds to wait after so many attempts; `chance` is in [0, 1). Never less than the server asks for."""
    # 2**60 of anything is above any max_delay.
    grown = min(options.first_delay * 2.0 ** min(attempt - 1, 60), options.max_delay)
    wait = grown * (1.0 - options.jitter * chance)
    asked = _seconds(retry_after)
    # All callers that got the same number would come back at the same moment.
    return max(wait, asked + options.first_delay * options.jitter * chance) if asked > 0 else wait


def _may_pass(error: ToolError, options: RetryOptions, call: Invocation) -> bool:
    if isinstance(error, ToolTimeoutError):
        return options.on_timeout and call.traits.repeatable
    return error.transient


def _chance(call: Invocation, attempt: int) -> float:
    """In [0, 1), of the call itself, whatever else is in flight."""
    return random.Random(f"{call.episode}/{call.call.id}/{call.call.name}/{attempt}").random()


def _seconds(retry_after: Any) -> float:
    """The seconds that a server asks for, 0 for none. Tools pass headers on as they are, and an unreadable one must not
    hide the error that it came with."""
    try:
        seconds = parse_retry_after(retry_after) if isinstance(retry_after, str) else float(retry_after or 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return 0.0 if seconds is None or math.isnan(seconds) else min(seconds, _LONGEST)


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number, or an HTTP date. None where it says neither.

    `now` is the time in seconds since the epoch. What lies in the past is 0, what is longer than a week is a week.
    """
    text = (value or "").strip()[:64]
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(text)
            if date.tzinfo is None:  # The oldest of the three forms names no zone, and HTTP knows but one.
                date = date.replace(tzinfo=datetime.UTC)
            seconds = date.timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST)
