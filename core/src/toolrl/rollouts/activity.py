"""Counters of a runner while its episodes run, for `toolrl status`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from toolrl.types import Episode

_KEPT = 256
"""Calls of a tool whose latencies are kept: the last ones."""


@dataclass
class _Tool:
    calls: int = 0
    errors: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


class Activity:
    """Episodes in flight and latencies of tools, of one runner."""

    def __init__(self) -> None:
        self.waiting = 0
        """Episodes that wait for a place."""
        self.running = 0
        self.ended = 0
        """Since the start."""
        self.failed = 0
        """Of those that ended."""
        self._tools: dict[str, _Tool] = {}

    @asynccontextmanager
    async def place(self, gate: asyncio.Semaphore) -> AsyncIterator[None]:
        """A place among those that `gate` gives, for one episode."""
        self.waiting += 1
        try:
            await gate.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            gate.release()

    def note(self, episode: Episode) -> None:
        """An episode has ended."""
        self.ended += 1
        self.failed += episode.failure is not None
        for record in episode.calls:
            if record.call.name is None:
                continue
            tool = self._tools.setdefault(record.call.name, _Tool())
            tool.calls += 1
            tool.errors += record.result.error is not None
            tool.seconds.append(record.seconds)

    def status(self) -> dict[str, Any]:
        """All of it as JSON values. Latencies are in seconds, of the last calls."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "ended": self.ended,
            "failed": self.failed,
            "tools": {name: _tool_status(tool) for name, tool in sorted(self._tools.items())},
        }


def _tool_status(tool: _Tool) -> dict[str, Any]:
    seconds = sorted(tool.seconds)
    return {
        "calls": tool.calls,
        "errors": tool.errors,
        "p50": round(_quantile(seconds, 0.5), 6),
        "p95": round(_quantile(seconds, 0.95), 6),
        "max": round(seconds[-1], 6),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
