"""The thread that updates run in, and how they end when the run is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class UpdateThread:
    """One thread for all torch work of training: torch keeps a pool of threads for each that calls it.

    A context manager: leaving it ends the thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "toolrl-update")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """Run to the end, even when cancelled meanwhile: the result, and whether a cancellation waits."""
        future = self._executor.submit(function, *args, **kwargs)
        waiting = asyncio.wrap_future(future)
        interrupted = False
        while not waiting.done():
            try:
                await asyncio.wait([waiting])
            except asyncio.CancelledError:
                interrupted = True
        return waiting.result(), interrupted

    def __enter__(self) -> UpdateThread:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()
