"""Time that passes by itself: for tests of waits, limits and time-outs that take no time.

    run_in_virtual_time(main())

The event loop's clock jumps to the next timer whenever nothing else is left to do, so that `asyncio.sleep(3600)`
returns at once and `loop.time()` says that an hour went by. Only for code that waits on the loop itself: what a thread
or a socket takes isn't waited for while a timer stands.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout is not None:
            self.now += 0.0 if events or timeout is None else max(timeout, 0.0)
            return events
        return super().select(None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on such a loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
