"""A session on its way: a tool box awaits `wait_turn` first, without a time limit of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from toolrl.protocols import ToolSession

P = TypeVar("P")


class QueuedSession(AbstractAsyncContextManager[ToolSession], Generic[P]):
    """Takes a place with `enter`, makes the session there with `make`, and gives the place back with `leave`."""

    def __init__(
        self,
        enter: Callable[[], Awaitable[P]],
        make: Callable[[P], ToolSession],
        leave: Callable[[P], Awaitable[None]],
    ) -> None:
        self._enter = enter
        self._make = make
        self._give_back = leave
        self._place: P | None = None

    async def wait_turn(self) -> None:
        """Wait for a place. Raises ToolsetError."""
        if self._place is None:
            self._place = await self._enter()

    async def __aenter__(self) -> ToolSession:
        await self.wait_turn()
        assert self._place is not None
        try:
            return self._make(self._place)
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            await self._give_back(place)
