"""Interpreters that wait for calls: each is a process of its own, isolated already, and runs the code of one call or of
one episode."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from toolrl_plugin_python.interpreter import Interpreter
from toolrl_plugin_python.jail.settings import JobLimits, Settings
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Pool:
    """Keeps `size` interpreters ready. `start` it before use, `stop` it on every path."""

    def __init__(self, settings: Settings, limits: JobLimits, output_bytes: int, size: int) -> None:
        self._settings = settings
        self._limits = limits
        self._output_bytes = output_bytes
        self._size = size
        self._ready: deque[Interpreter] = deque()
        self._keeper: KeeperProcess | None = None
        self._keeper_lock = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the first interpreters. Raises KeeperError."""
        for _ in range(max(1, self._size)):
            self._ready.append(await self._make())
        if self._size:
            # One task for the pool's whole life.
            self._filler = asyncio.create_task(self._fill(), name="python interpreters")

    async def take(self) -> Interpreter:
        """An interpreter of the caller's own, to be closed by it. Raises KeeperError."""
        try:
            while self._ready:
                interpreter = self._ready.popleft()
                if interpreter.alive:
                    return interpreter
                await interpreter.close()
            return await self._make()
        finally:
            self._wanted.set()

    async def stop(self) -> None:
        """End every interpreter, also those that were taken."""
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.cancel()
            await asyncio.wait([filler])
        try:
            while self._ready:
                await self._ready.popleft().close()
        finally:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                await keeper.stop()

    async def _make(self) -> Interpreter:
        interpreter = Interpreter(await self._living_keeper(), self._limits, self._output_bytes)
        await interpreter.start()
        return interpreter

    async def _living_keeper(self) -> KeeperProcess:
        """The keeper; a new one where it died."""
        async with self._keeper_lock:
            if self._keeper is not None and self._keeper.alive:
                return self._keeper
            if self._keeper is not None:
                _log.warning("the keeper of Python interpreters died; starting another one")
                old, self._keeper = self._keeper, None
                await old.stop()
            keeper = KeeperProcess(self._settings)
            await keeper.start()
            self._keeper = keeper
            return keeper

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while len(self._ready) < self._size:
                try:
                    self._ready.append(await self._make())
                except KeeperError as error:
                    # A call that finds none makes its own, and says what is wrong.
                    _log.warning("no interpreter can be kept ready: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
