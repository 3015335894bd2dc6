"""The sessions of a server: how many are open at once, and how one is opened.

An episode takes a place, then opens a session. Where the server is full, because it takes fewer sessions or others use
them, the episodes wait in line: the first asks again now and then, and whenever one of ours ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from toolrl.errors import ToolsetError
from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_openenv.connection import (
    NOT_THERE,
    Address,
    FullError,
    LostError,
    OpenEnvConnection,
    SlowError,
    connect,
)
from toolrl_plugin_openenv.options import OpenEnvOptions

FULL_DELAY = 1.0
"""Seconds between tries where a server is full with sessions of others."""
FULL = "A server takes one at a time unless its max_concurrent_envs says otherwise."
_log = logging.getLogger(__name__)


class SessionPool:
    """Opens and closes the sessions of one toolset."""

    def __init__(self, address: Address, options: OpenEnvOptions, name: str) -> None:
        """`name` is the toolset's, for errors."""
        self.sessions = 0
        """How many are open."""
        self._address = address
        self._options = options
        self._name = name
        self._places = asyncio.Semaphore(options.max_sessions)
        self._line = asyncio.Lock()
        """Held by the first of those that wait because the server is full."""
        self._freed = asyncio.Event()
        self._said_full = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[OpenEnvConnection]:
        """A session, when there is a place. Raises ToolsetError where none comes in time, or the server isn't there."""
        seconds = self._options.queue_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
                try:
                    connection = await self._first_in_line()
                except BaseException:
                    self._places.release()
                    raise
        except TimeoutError:
            raise ToolsetError(
                f"no session of {self._address.shown} came free within {seconds:g} s (queue_timeout); "
                f"{self.sessions} of ours are open",
                where=self._name,
                hint="Let the server take more sessions (max_concurrent_envs), or lower rollout.concurrency.",
            ) from None
        self.sessions += 1
        try:
            yield connection
        finally:
            await uninterrupted(self._close(connection))

    async def _open(self) -> OpenEnvConnection:
        """Raises ToolsetError; FullError where the server is full."""
        reconnect = self._options.reconnect
        delay = reconnect.first_delay
        for attempt in range(1, reconnect.attempts + 1):
            try:
                return await connect(self._address)
            except (LostError, SlowError) as error:
                if attempt == reconnect.attempts:
                    raise ToolsetError(
                        f"{error.message}; tried {attempt} times",
                        where=self._name,
                        hint=error.hint or NOT_THERE,
                    ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, reconnect.max_delay)
        raise AssertionError("there is at least one attempt")

    async def _first_in_line(self) -> OpenEnvConnection:
        if not self._line.locked():
            with suppress(FullError):
                return await self._open()
        async with self._line:
            while True:
                self._freed.clear()
                try:
                    return await self._open()
                except FullError as error:
                    level = logging.DEBUG if self._said_full else logging.WARNING
                    _log.log(level, "%s; episodes wait for a free session. %s", error.message.rstrip("."), FULL)
                    self._said_full = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(FULL_DELAY):
                        await self._freed.wait()

    async def _close(self, connection: OpenEnvConnection) -> None:
        try:
            await connection.close()
        finally:
            self.sessions -= 1
            self._places.release()
            self._freed.set()
