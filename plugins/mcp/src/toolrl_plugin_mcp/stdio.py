"""The transport to a server that is started here: one JSON message a line on its stdin and stdout.

The SDK's own keeps a line of any length, and copies it anew for each piece of it that comes.
The process runs behind a guard (`toolrl_common.process_guard`), which ends it and all that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment

from toolrl.tools.cancellation import uninterrupted
from toolrl_common import process_guard
from toolrl_plugin_mcp.messages import MessageBuffer, dump_message, fit_message, parse_message
from toolrl_plugin_mcp.server_options import ServerOptions, plain_values
from toolrl_plugin_mcp.signals import LifeSignals

LAST_WORDS_SECONDS = 2.0
"""How long the end of stderr is waited for after stdout ended."""
GRACE_SECONDS = 2.0
"""How long a server may take to end after its stdin was closed; then the guard ends it."""
GUARD_SECONDS = 4.0
"""How long the guard may take to end everything before it is killed."""
_TAIL = 1000
"""Characters of stderr that are kept for messages."""
_CHUNK = 65536
_log = logging.getLogger(__name__)


class Tail:
    """The last of what a server wrote to stderr, without secrets. All of it goes to the log, at level debug."""

    def __init__(self, hide: Callable[[str], str], label: str) -> None:
        self._hide = hide
        self._label = label
        self._shown = ""
        self._rest = ""
        """A line that isn't complete: half a secret couldn't be found."""

    def add(self, text: str) -> None:
        """What came on stderr."""
        lines, newline, rest = (self._rest + text).rpartition("\n")
        if len(rest) > _CHUNK:
            lines, newline, rest = lines + newline + rest, "", ""
        self._rest = rest
        if lines:
            hidden = self._hide(lines)
            _log.debug("%s: stderr: %s", self._label, hidden)
            self._shown = f"{self._shown}{hidden}\n"[-_TAIL:]

    def show(self) -> str:
        """A few words for a message; empty where nothing was written."""
        text = (self._shown + self._hide(self._rest))[-_TAIL:].strip()
        return f"; its last words:\n{text}" if text else ""


@asynccontextmanager
async def stdio_streams(
    options: ServerOptions, signals: LifeSignals, *, hide: Callable[[str], str], label: str, max_bytes: int
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the process, and end it and all that came of it when left. Raises OSError, and ValueError for a command
    that can't be one."""
    tail = Tail(hide, label)
    process = await _start(options)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    to_session, read = anyio.create_memory_object_stream[Any](0)
    write, from_session = anyio.create_memory_object_stream[Any](0)
    errors = asyncio.create_task(_read_errors(process.stderr, tail))
    reader = asyncio.create_task(_read_messages(process.stdout, to_session, max_bytes))
    pumps = [errors, reader, asyncio.create_task(_write_messages(process.stdin, from_session))]
    watch = asyncio.create_task(_watch(reader, errors, to_session, signals, tail))
    try:
        yield read, write
    finally:
        watch.cancel()
        # Until the process is gone its output is read on, to nowhere, so that it can't hang in a write.
        read.close()
        closing = asyncio.create_task(_close(process))
        try:
            await asyncio.shield(closing)
        finally:
            if not closing.done():  # Cancelled: no grace.
                _terminate(process)
            await uninterrupted(_end(closing, [watch, *pumps]))
            for stream in (to_session, write, from_session):
                stream.close()


async def _start(options: ServerOptions) -> asyncio.subprocess.Process:
    guard = ["-I", "-S", process_guard.__file__, str(os.getpid()), str(options.command), *options.args]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *guard,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=_CHUNK,
        env={**get_default_environment(), **plain_values(options.env)},
        cwd=options.cwd,
        start_new_session=True,
    )


# The pipes.


async def _read_messages(pipe: asyncio.StreamReader, to_session: Any, max_bytes: int) -> None:
    """Messages of the server until it ends; what is no message is passed over, as many servers print on stdout."""
    buffer = MessageBuffer(max_bytes)
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while chunk := await pipe.read(_CHUNK):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                buffer.add(end)
                if not buffer.empty and (message := await fit_message(buffer.take(), max_bytes)):
                    await _send(message, to_session)
            buffer.add(rest)
        return
    while await pipe.read(_CHUNK):  # The session is over.
        pass


async def _send(line: bytes, to_session: Any) -> None:
    try:
        message = parse_message(line)
    except (ValueError, RecursionError):
        await asyncio.sleep(0)  # A server may print much: others have their turn.
        return
    await to_session.send(message)


async def _write_messages(pipe: asyncio.StreamWriter, from_session: Any) -> None:
    """Messages of the session. A server that doesn't read holds up its callers, until their time limits."""
    with contextlib.suppress(OSError):  # It ended: its stdout says so.
        async for message in from_session:
            pipe.write(dump_message(message) + b"\n")
            await pipe.drain()
    from_session.close()


async def _read_errors(pipe: asyncio.StreamReader, tail: Tail) -> None:
    while data := await pipe.read(_CHUNK):
        tail.add(data.decode(errors="replace"))


async def _watch(
    reader: asyncio.Task[None], errors: asyncio.Task[None], to_session: Any, signals: LifeSignals, tail: Tail
) -> None:
    """Report the end of the process before the SDK answers the waiting calls with it."""
    await asyncio.wait([reader])
    await asyncio.wait([errors], timeout=LAST_WORDS_SECONDS)
    signals.lost(f"it ended{tail.show()}")
    to_session.close()


# The end.


async def _close(process: asyncio.subprocess.Process) -> None:
    """End the process and all that came of it: by closing its stdin, by SIGTERM, by SIGKILL."""
    assert process.stdin is not None
    process.stdin.close()
    if not await _has_ended(process, GRACE_SECONDS):
        _terminate(process)
        if not await _has_ended(process, GUARD_SECONDS):
            _log.warning("the guard %d doesn't end, and is killed", process.pid)
            process.kill()
            await _has_ended(process, GUARD_SECONDS)
    # A stray that left the guard may hold a pipe open. Nothing public of asyncio closes the transport.
    process._transport.close()  # type: ignore[attr-defined]


def _terminate(process: asyncio.subprocess.Process) -> None:
    """Ask the guard to end the process and all that came of it."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()


async def _has_ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Whether the guard ended within this time. asyncio's `wait` waits for the pipes too, which a stray may hold."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return process.returncode is not None


async def _end(closing: asyncio.Task[None], pumps: list[asyncio.Task[None]]) -> None:
    await asyncio.wait([closing])
    for pump in pumps:
        pump.cancel()
    await asyncio.wait(pumps)
    await asyncio.gather(*pumps, return_exceptions=True)
