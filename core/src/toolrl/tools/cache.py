"""Answers of pure tools, kept for equal calls of all episodes.

The least recently used answer is dropped first.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from toolrl.tools.invocation import Invocation
from toolrl.types import ToolResult


class Cache:
    """Keeps up to `size` answers that are no errors and don't end their episode."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[bytes, ToolResult] = OrderedDict()

    async def answer(self, call: Invocation, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """The answer to an equal call, or that of `run`. Raises what `run` raises."""
        key = _key(call)
        if key is None:
            return await run()
        if key in self._kept:
            self._kept.move_to_end(key)
            call.note("cache_hits")
            return self._kept[key]
        call.note("cache_hits", 0)
        result = await run()
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
