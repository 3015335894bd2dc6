"""The run's side of isolated interpreters: one gets cells and answers them, all of it hostile bytes; a pool keeps some
ready."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import time
from collections import deque
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

from toolrl_plugin_python.channel import Drain
from toolrl_plugin_python.jail.settings import JobLimits, Settings
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess

_LONGEST_ANSWER = 400
_log = logging.getLogger(__name__)

Kind = Literal["ok", "exception", "exit", "timeout", "memory", "cpu", "disk", "output", "ended", "garbled"]


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """How a cell ended and what it printed."""

    kind: Kind
    """`ok`; `exception` that wasn't caught; `exit` by SystemExit; the limit for which it was ended; `ended` where the
    interpreter ended in the middle; `garbled` where it answered nonsense."""
    detail: str = ""
    """The exception's class, or the exit status."""
    head: bytes = b""
    """The beginning of what was printed."""
    tail: bytes = b""
    """Its end, where not all of it was kept."""
    left_out: int = 0
    """Bytes between these two."""
    seconds: float = 0.0
    exit_code: int | None = None
    """With `ended`: of the interpreter, from 128 on a signal's number more than that."""


class Interpreter:
    """One interpreter. `start` it, `execute` cells one after another, `close` it on every path."""

    def __init__(self, keeper: KeeperProcess, limits: JobLimits, output_bytes: int) -> None:
        self._keeper = keeper
        self._limits = limits
        self._output_bytes = output_bytes
        self._flooded = False

    @property
    def alive(self) -> bool:
        """True until it ended or was closed."""
        return self._job.alive

    async def start(self) -> None:
        """Make it and wait until it is ready for its first cell. Raises KeeperError."""
        half = self._output_bytes // 2
        output, output_end = os.pipe2(os.O_CLOEXEC)
        self._output = Drain(output, self._output_bytes - half, half, on_flood=self._flood)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            descriptors = [nothing, output_end, output_end]
            self._job = await self._keeper.begin(self._limits, descriptors, _LONGEST_ANSWER)
        except BaseException:
            self._output.close()
            raise
        finally:
            os.close(nothing)
            os.close(output_end)
        # What it started may hold the channel open after it.
        self._job.ended.add_done_callback(lambda _: self._job.channel.hang_up())

    async def execute(self, code: str, seconds: float, *, last: bool) -> CellOutcome:
        """Run a cell. Where it is the `last` one, or ends badly, the interpreter and all it started are gone when this
        returns; otherwise the interpreter is held still. Raises KeeperError.
        """
        begin = time.monotonic()
        token = secrets.token_hex(8)
        self._output.restart()
        self._keeper.watch(self._job)
        request = json.dumps({"token": token, "code": code, "fresh": last}).encode() + b"\n"
        kind: Kind = "timeout"
        detail = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._job.channel.send(request)
                kind, detail = _read_answer(await self._job.channel.receive(), token)
        took = time.monotonic() - begin
        if not last and kind in ("ok", "exception", "exit"):
            await self._keeper.pause(self._job)
            self._output.rest()
            if self.alive:
                return self._outcome(kind, detail, took)
        ending = await self._keeper.end(self._job)
        self._output.rest()
        # The limit that it broke goes before all else.
        if self._flooded or ending.reason:
            kind, detail = "output" if self._flooded else ending.reason or kind, ""
        return self._outcome(kind, detail, took, ending.exit_code)

    async def close(self) -> None:
        """End it with all it started."""
        self._output.close()
        await self._keeper.close(self._job)

    def _flood(self) -> None:
        self._flooded = True
        self._keeper.kill(self._job)

    def _outcome(self, kind: Kind, detail: str, took: float, exit_code: int | None = None) -> CellOutcome:
        return CellOutcome(kind, detail, *self._output.parts(), self._output.left_out, took, exit_code)


class Pool:
    """Keeps `size` interpreters ready. `start` it before use, `stop` it on every path."""

    def __init__(self, settings: Settings, limits: JobLimits, output_bytes: int, size: int) -> None:
        self._limits = limits
        self._output_bytes = output_bytes
        self._size = size
        self._ready: deque[asyncio.Task[Interpreter]] = deque()
        self.keeper = KeeperProcess(settings)
        self._keeper_lock = asyncio.Lock()

    async def start(self) -> None:
        """Make the first interpreters. Raises KeeperError."""
        await self.keeper.start()
        self._ready.append(asyncio.create_task(self._make()))
        self._refill()
        await self._ready[0]

    async def take(self) -> Interpreter:
        """An interpreter of the caller's own, to be closed by it. Raises KeeperError."""
        try:
            while self._ready:
                with suppress(KeeperError):  # made anew below, with what is wrong
                    interpreter = await self._ready.popleft()
                    if interpreter.alive:
                        return interpreter
                    await interpreter.close()
            return await self._make()
        finally:
            self._refill()

    def _refill(self) -> None:
        # In a context of its own: a ready interpreter keeps nothing of the episode that took the one before.
        while len(self._ready) < self._size:
            self._ready.append(asyncio.create_task(self._make(), context=Context()))

    async def stop(self) -> None:
        """End every interpreter, also those that were taken."""
        self._size = 0
        for making in self._ready:
            making.cancel()
        for made in await asyncio.gather(*self._ready, return_exceptions=True):
            if isinstance(made, Interpreter):
                await made.close()
        await self.keeper.stop()

    async def _make(self) -> Interpreter:
        async with self._keeper_lock:
            if not self.keeper.alive:
                _log.warning("the keeper of Python interpreters died; starting another one")
                await self.keeper.stop()
                self.keeper = KeeperProcess(self.keeper.settings)
                await self.keeper.start()
        interpreter = Interpreter(self.keeper, self._limits, self._output_bytes)
        await interpreter.start()
        return interpreter


_ANSWER = re.compile(rb"([0-9a-f]{16}) (ok|exit|exception)(?: ([A-Za-z0-9_]{1,80}))?\n")
_KINDS: dict[bytes, Kind] = {b"ok": "ok", b"exit": "exit", b"exception": "exception"}


def _read_answer(line: bytes | None, token: str) -> tuple[Kind, str]:
    """The kind of an answer, and its detail. Anything may stand there; None is no line."""
    if line is None:
        return "ended", ""
    match = _ANSWER.fullmatch(line)
    if match is None or match[1] != token.encode():
        return "garbled", ""
    return _KINDS[match[2]], (match[3] or b"").decode()
