"""Answers of pure tools, kept for equal calls of all episodes.

The least recently used answer is dropped first. Equal calls at once run once: the others wait for the first, and where
that one is cancelled the next takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType

from toolrl.tools.invocation import Invocation, Next
from toolrl.types import ToolResult


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException
    trace: TracebackType | None
    """As it was where the call ran; raising an exception adds to its own."""


_Outcome = ToolResult | _Raised | None
"""None: the call was cancelled."""


class Cache:
    """Keeps up to `size` answers that are no errors and don't end their episode."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[bytes, ToolResult] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[_Outcome]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def __call__(self, invocation: Invocation, following: Next) -> ToolResult:
        key = _key(invocation)
        if key is None:
            return await following(invocation)
        while True:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                invocation.note("cache_hits")
                return kept
            running = self._running.get(key)
            if running is None:
                invocation.note("cache_hits", 0)
                return await self._run(key, invocation, following)
            outcome = await asyncio.shield(running)
            if isinstance(outcome, ToolResult):
                invocation.note("cache_hits")
                return outcome
            if outcome is not None:
                raise outcome.error.with_traceback(outcome.trace)

    async def _run(self, key: bytes, invocation: Invocation, following: Next) -> ToolResult:
        running: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._running[key] = running
        outcome: _Outcome = None
        try:
            outcome = result = await following(invocation)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            outcome = _Raised(error, error.__traceback__)
            raise
        finally:
            del self._running[key]
            running.set_result(outcome)
        if result.error is None and not result.done:
            self._kept[key] = result
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return result


def _key(invocation: Invocation) -> bytes | None:
    """The same for calls that have the same answer; None for those that have to run."""
    traits = invocation.traits
    if not traits.pure or traits.per_episode:
        return None
    given = [invocation.kwargs.get(f"{stage}_kwargs") for stage in ("create", "execute")]
    try:
        text = json.dumps([invocation.call.name, invocation.call.arguments, given], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
