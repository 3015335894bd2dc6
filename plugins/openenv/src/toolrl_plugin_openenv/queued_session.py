"""A session that is opened while a tool box awaits `wait_turn`, which has no time limit but the session's own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from toolrl.protocols import ToolSession


class QueuedSession(AbstractAsyncContextManager[ToolSession]):
    """The session of `opening`, entered by `wait_turn`."""

    def __init__(self, opening: AbstractAsyncContextManager[ToolSession]) -> None:
        self._opening = opening
        self._session: ToolSession | None = None

    async def wait_turn(self) -> None:
        """Wait for a place, and open the session there. Raises ToolsetError, DataError."""
        if self._session is None:
            self._session = await self._opening.__aenter__()

    async def __aenter__(self) -> ToolSession:
        await self.wait_turn()
        assert self._session is not None
        return self._session

    async def __aexit__(self, *error: Any) -> None:
        await self._opening.__aexit__(*error)
