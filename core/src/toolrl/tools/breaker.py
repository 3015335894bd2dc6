"""A circuit breaker: an endpoint that fails again and again isn't called for a while.

    closed ──failures in a row──▶ open ──after `reset`──▶ half-open ──the probe succeeds──▶ closed
                                   ▲                          └──────the probe fails──────────┐
                                   └──────────────────────────────────────────────────────────┘

While it is open, calls are rejected. Half-open, one call is let through: the probe; its outcome decides. A call that
began before the breaker opened decides nothing when it ends afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from toolrl.config.tool_policy import BreakerOptions
from toolrl.errors import ArgumentsError, ToolError, ToolLimitError, ToolTimeoutError, ToolUnavailableError

_log = logging.getLogger(__name__)


class CircuitBreaker:
    """The breaker of one endpoint, shared by all tools and episodes of a process."""

    def __init__(self, endpoint: str, options: BreakerOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self._failed_at: deque[float] = deque(maxlen=options.failures)
        self._open_until: float | None = None
        self._period = 0
        """Counts openings and closings, so that a late outcome is known as one."""
        self._probing = False

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        """What it would do with a call now."""
        if self._open_until is None:
            return "closed"
        return "open" if _now() < self._open_until else "half_open"

    def check(self, tool: str) -> None:
        """Raises ToolUnavailableError, which names the tool, where no call is let through now."""
        state = self.state
        if state == "open" or (state == "half_open" and self._probing):
            raise ToolUnavailableError(
                f"The tool {tool!r} doesn't work now: its last calls failed. Go on without it, or try again later."
            )

    @contextmanager
    def watch(self, tool: str) -> Iterator[None]:
        """Around a call: checks, and learns the outcome."""
        self.check(tool)
        period, works = self._period, None
        self._probing = self._open_until is not None
        try:
            yield
            works = True
        except ToolError as error:
            works = _shows(error)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:
            works = False
            raise
        finally:
            self._learn(period, works)

    def _learn(self, period: int, works: bool | None) -> None:
        """The outcome of a call; None where it is unknown."""
        if period != self._period:
            return
        self._probing = False
        if works:
            self._failed_at.clear()
            if self._open_until is not None:
                self._open_until = None
                self._period += 1
                _log.info("endpoint %r answers again: its circuit breaker is closed", self.endpoint)
        elif works is False:
            self._failed_at.append(_now())
            recent = sum(at >= _now() - self.options.window for at in self._failed_at)
            if self._open_until is not None or recent >= self.options.failures:
                self._open()

    def _open(self) -> None:
        self._open_until = _now() + self.options.reset
        self._period += 1
        self._failed_at.clear()
        _log.warning(
            "endpoint %r fails: its circuit breaker is open; its calls are answered `unavailable` for %g s",
            self.endpoint,
            self.options.reset,
        )


def _shows(error: ToolError) -> bool | None:
    """What an error shows of the endpoint: True for one that works, None where it may not even have been asked."""
    if isinstance(error, ArgumentsError | ToolLimitError):
        return None
    # One that answers, if only to refuse what it was asked, works.
    return not (error.transient or isinstance(error, ToolTimeoutError | ToolUnavailableError))


def _now() -> float:
    return asyncio.get_running_loop().time()
