"""The run's side of one isolated interpreter: it sends cells and takes what comes back, all of it as hostile bytes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from toolrl_plugin_python.channel import LineChannel
from toolrl_plugin_python.drain import Drain
from toolrl_plugin_python.jail.settings import JobLimits
from toolrl_plugin_python.keeper_process import Ending, KeeperError, KeeperProcess, Running

READY_SECONDS = 30.0
GRACE_SECONDS = 1.0
"""After its time an interpreter may say where it was; then it is killed."""
_LONGEST_ANSWER = 400

Kind = Literal["ok", "exception", "exit", "timeout", "memory", "cpu", "disk", "processes", "output", "ended", "garbled"]


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
        self._job: Running | None = None
        self._output: Drain | None = None
        self._channel: LineChannel | None = None
        self._flooded = False

    @property
    def alive(self) -> bool:
        """True until it ended or was closed."""
        return self._job is not None and not self._job.ended.done() and self._keeper.alive

    async def start(self) -> None:
        """Make it and wait until it is ready for its first cell. Raises KeeperError."""
        try:
            channel = self._channel = await LineChannel.open(_LONGEST_ANSWER)
            job = self._job = self._begin(channel)
            async with asyncio.timeout(READY_SECONDS):
                ready = await channel.receive()
            if ready != b"ready\n":
                ending = await self._keeper.end(job)
                reason = ending.error or f"it ended with {ending.exit_code}"
                raise KeeperError(f"an interpreter can't be isolated: {reason}")
        except TimeoutError:
            await self.close()
            raise KeeperError(f"an isolated interpreter wasn't ready within {READY_SECONDS:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def execute(self, code: str, seconds: float, *, last: bool) -> CellOutcome:
        """Run a cell. Where it is the `last` one, or ends badly, the interpreter and all it started are gone when this
        returns; otherwise the interpreter is held still, and what it started is gone. Raises KeeperError.
        """
        assert self._job is not None
        assert self._output is not None
        assert self._channel is not None
        begin = time.monotonic()
        token = secrets.token_hex(8)
        self._output.restart()
        self._keeper.watch(self._job)
        request = json.dumps({"token": token, "code": code, "seconds": seconds, "fresh": last}).encode() + b"\n"
        kind: Kind = "timeout"
        detail = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await self._channel.send(request)
                kind, detail = _read_answer(await self._channel.receive(), token)
        took = time.monotonic() - begin
        if not last and kind in ("ok", "exception", "exit"):
            await self._keeper.pause(self._job)
            self._output.rest()
            if self.alive:
                return self._outcome(kind, detail, took)
        ending = await self._keeper.end(self._job)
        self._output.rest()
        return self._ended(ending, kind, detail, took)

    async def close(self) -> None:
        """End it with all it started."""
        try:
            if self._job is not None and self._keeper.alive:
                await self._keeper.end(self._job)
        finally:
            if self._output is not None:
                self._output.close()
            if self._channel is not None:
                await self._channel.close()

    def _begin(self, channel: LineChannel) -> Running:
        half = self._output_bytes // 2
        output, output_end = os.pipe2(os.O_CLOEXEC)
        self._output = Drain(output, self._output_bytes - half, half, on_flood=self._flood)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            descriptors = [nothing, output_end, output_end, channel.descriptor]
            job = self._keeper.begin("interpreter", self._limits, descriptors)
        finally:
            os.close(nothing)
            os.close(output_end)
            channel.handed_over()
        # What it started may hold the channel open after it.
        job.ended.add_done_callback(lambda _: channel.hang_up())
        return job

    def _flood(self) -> None:
        self._flooded = True
        if self._job is not None:
            self._keeper.kill(self._job)

    def _ended(self, ending: Ending, kind: Kind, detail: str, took: float) -> CellOutcome:
        """The outcome of a cell whose interpreter is gone: the limit that it broke goes before all else."""
        if ending.error:
            raise KeeperError(f"an interpreter can't be isolated: {ending.error}")
        if self._flooded:
            kind, detail = "output", ""
        elif ending.reason in ("memory", "cpu", "disk", "processes"):
            kind, detail = ending.reason, ""
        return self._outcome(kind, detail, took, ending.exit_code)

    def _outcome(self, kind: Kind, detail: str, took: float, exit_code: int | None = None) -> CellOutcome:
        assert self._output is not None
        return CellOutcome(kind, detail, *self._output.parts(), self._output.left_out, took, exit_code)


_ANSWER = re.compile(rb"([0-9a-f]{16}) (ok|stopped|exit|exception)(?: ([A-Za-z0-9_]{1,80}))?\n")
_KINDS: dict[bytes, Kind] = {b"ok": "ok", b"stopped": "timeout", b"exit": "exit", b"exception": "exception"}


def _read_answer(line: bytes | None, token: str) -> tuple[Kind, str]:
    """The kind of an answer, and its detail. Anything may stand there; None is no line."""
    if line is None:
        return "ended", ""
    match = _ANSWER.fullmatch(line)
    if match is None or match[1] != token.encode():
        return "garbled", ""
    return _KINDS[match[2]], (match[3] or b"").decode()
