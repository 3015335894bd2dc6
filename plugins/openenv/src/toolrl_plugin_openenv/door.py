"""The way into a server: who may enter, and how a session is opened.

An episode takes a place, then opens a session; where the server is full it waits for its turn. A session in which
nothing was asked (an episode that only wanted to know its tools) is kept for a second, for the next one.
"""

from __future__ import annotations

import asyncio
import logging

from toolrl.errors import ToolsetError
from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_openenv.connection import NOT_THERE, Address, Connection, FullError, LostError, SlowError, connect
from toolrl_plugin_openenv.options import ReconnectOptions
from toolrl_plugin_openenv.places import Places

SPARE_SECONDS = 1.0
FULL_DELAY = 0.2
LONGEST_FULL_DELAY = 5.0
"""Seconds between tries where a server is full with sessions of others."""
_log = logging.getLogger(__name__)


class Door:
    """Opens and closes the sessions of one toolset."""

    def __init__(
        self,
        address: Address,
        reconnect: ReconnectOptions,
        *,
        most: int,
        queue_timeout: float,
        name: str = "openenv",
    ) -> None:
        """`name` is the toolset's, for errors."""
        self.places = Places(most)
        self._address = address
        self._reconnect = reconnect
        self._queue_timeout = queue_timeout
        self._name = name
        self._spare: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._said_full = False

    async def enter(self) -> Connection:
        """A session, when there is a place. Raises ToolsetError where none comes in time, or the server isn't there."""
        spare = self._take_spare()
        if spare is not None:
            return spare
        try:
            async with asyncio.timeout(self._queue_timeout):
                return await self._enter()
        except TimeoutError:
            raise ToolsetError(
                f"no session of {self._address.shown} came free within {self._queue_timeout:g} s (queue_timeout); "
                f"{self.places.used} of ours are open, {self.places.waiting} episodes wait",
                where=self._name,
                hint="Let the server take more sessions (max_concurrent_envs), or lower rollout.concurrency.",
            ) from None

    async def leave(self, connection: Connection, *, fresh: bool = False) -> None:
        """Close a session and give its place back, whatever happens meanwhile. `fresh`: nothing was asked in it."""
        if fresh and connection.lost is None and self._spare is None and not self.places.waiting:
            self._spare = connection
            self._timer = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._drop_spare)
            return
        await uninterrupted(self._close(connection))

    async def open(self) -> Connection:
        """A session for someone who has a place already. Raises ToolsetError; FullError where the server is full."""
        delay = self._reconnect.first_delay
        for attempt in range(1, self._reconnect.attempts + 1):
            try:
                return await connect(self._address)
            except (LostError, SlowError) as error:
                if attempt == self._reconnect.attempts:
                    raise ToolsetError(
                        f"{error.message}; tried {attempt} times",
                        where=self._name,
                        hint=error.hint or NOT_THERE,
                    ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._reconnect.max_delay)
        raise AssertionError("there is at least one attempt")

    async def shut(self) -> None:
        """Close what is still open and belongs to no episode."""
        self._drop_spare()
        if self._closing:
            await uninterrupted(asyncio.gather(*self._closing, return_exceptions=True))

    async def _enter(self) -> Connection:
        number, delay, held = self.places.number(), FULL_DELAY, False
        try:
            while True:
                if not held:
                    await self.places.take(number)
                    held = True
                try:
                    return await self.open()
                except FullError as error:
                    self._say_full(error)
                    held = not self.places.refused(error.places)
                    if held:
                        await asyncio.sleep(delay)
                        delay = min(2 * delay, LONGEST_FULL_DELAY)
        except BaseException:
            if held:
                self.places.give_back()
            raise

    async def _close(self, connection: Connection) -> None:
        try:
            await connection.close()
        finally:
            self.places.give_back()

    def _take_spare(self) -> Connection | None:
        spare, self._spare = self._spare, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return spare

    def _drop_spare(self) -> None:
        spare = self._take_spare()
        if spare is not None:
            closing = asyncio.get_running_loop().create_task(self._close(spare))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _say_full(self, error: FullError) -> None:
        if not self._said_full:
            self._said_full = True
            _log.warning(
                "%s; episodes wait for a free session. A server takes one at a time unless its max_concurrent_envs "
                "says otherwise.",
                error.message.rstrip("."),
            )
