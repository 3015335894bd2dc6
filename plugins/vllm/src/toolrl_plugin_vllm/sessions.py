"""One generation a session at a time, which closing the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from toolrl.errors import EngineError

T = TypeVar("T")


class Sessions:
    """The generations that are under way, by session. For one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def check_free(self, session: str) -> None:
        """Raise EngineError where the session is generating."""
        if session in self._tasks:
            raise EngineError(f"session {session!r} is generating already", hint="Use one session an episode.")

    async def run(self, session: str, work: Coroutine[Any, Any, T]) -> T:
        """Await a generation. Raises EngineError where `close` ended it."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks[session] = task
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise EngineError(f"session {session!r} was closed while it was generating") from None
        finally:
            del self._tasks[session]

    def close(self, session: str) -> None:
        """End what the session generates, if anything."""
        if session in self._tasks:
            self._tasks[session].cancel()

    async def close_all(self) -> None:
        """End all generations, and wait until they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
