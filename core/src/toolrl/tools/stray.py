"""What a component raised, told apart from what was asked of the code that awaits it.

`except Exception` misses what components do raise: `sys.exit()` deep in a library, a panic of a Rust extension, which
is a BaseException, or a CancelledError of some future of their own that nobody asked for. Each of these is the
component's failure. Ctrl-C, the closing of a coroutine and a cancellation from outside are not.
"""

from __future__ import annotations

import asyncio


class Watch:
    """Made before a component is awaited, in the task that awaits it; asked after it raised."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    @property
    def cancelled(self) -> bool:
        """True where somebody asked this task to stop since the watch began."""
        return self._task is not None and self._task.cancelling() > self._before

    def failed(self, error: BaseException) -> bool:
        """True where `error` is the component's own failure."""
        if isinstance(error, asyncio.CancelledError):
            return not self.cancelled
        return not isinstance(error, KeyboardInterrupt | GeneratorExit)
