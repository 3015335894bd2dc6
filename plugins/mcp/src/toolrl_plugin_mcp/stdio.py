"""The transport to a server that is started here: its process, one JSON message a line on its stdin and stdout.

The pipe is this plugin's own and not the SDK's, for four reasons: the process is started through a guard
(`toolrl_common.process_guard`), so that nothing outlives the run; a message has a greatest length, and reading it takes
linear time; lines that are no message (many servers print on stdout) are counted and passed over without a traceback
each; and how the process ended is known, with the last it wrote to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from toolrl.tools.cancellation import uninterrupted
from toolrl_common import process_guard
from toolrl_plugin_mcp.sdk import dump_message, mended_message, parse_message
from toolrl_plugin_mcp.server_options import ServerOptions, plain_values
from toolrl_plugin_mcp.signals import LifeSignals

GRACE_SECONDS = 2.0
"""How long a server may take to end after its stdin was closed, before it gets SIGTERM."""
GUARD_SECONDS = 5.0
"""How long the guard may take to end everything, before it is killed itself."""
STATUS_SECONDS = 5.0
"""How long the end of the guard is waited for after stdout ended."""
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_TAIL = 1000
"""Characters of stderr that are kept for messages."""
_CHUNK = 65536
_log = logging.getLogger(__name__)


class StartError(Exception):
    """A command that can't be run."""


class Tail:
    """The last of what a server wrote to stderr, and to stdout where it was no message; without secrets."""

    def __init__(self, hide: Callable[[str], str], label: str) -> None:
        self._hide = hide
        self._label = label
        self._shown = ""
        self._rest = ""
        """A line that isn't complete: half a secret couldn't be found."""
        self.strays = 0
        """Lines on stdout that were no message."""

    def add(self, text: str) -> None:
        """What came on stderr; it goes to the log, at level debug."""
        lines, newline, rest = (self._rest + text).rpartition("\n")
        if len(rest) > _CHUNK:
            lines, newline, rest = lines + newline + rest, "", ""
        self._rest = rest
        if lines:
            self._keep(self._hide(lines), "stderr")

    def stray(self, line: bytes) -> None:
        """A line on stdout that is no message."""
        self.strays += 1
        text = self._hide(line[:_CHUNK].decode(errors="replace"))[:200]
        if self.strays == 1:
            _log.warning("%s prints on stdout what is no message: %r", self._label, text)
        self._keep(text, "stdout")

    def show(self) -> str:
        """A few words for a message; empty where nothing was written."""
        text = (self._shown + self._hide(self._rest))[-_TAIL:].strip()
        return f"; its last words:\n{text}" if text else ""

    def _keep(self, text: str, where: str) -> None:
        _log.debug("%s: %s: %s", self._label, where, text)
        self._shown = f"{self._shown}{text}\n"[-_TAIL:]


@asynccontextmanager
async def stdio_streams(
    options: ServerOptions, signals: LifeSignals, *, hide: Callable[[str], str], label: str, max_bytes: int
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the process, and end it and all that came of it when left. Raises StartError."""
    tail = Tail(hide, label)
    server = await _start(options)
    to_session, read = anyio.create_memory_object_stream[Any](0)
    write, from_session = anyio.create_memory_object_stream[Any](0)
    pumps = [
        asyncio.create_task(_read_messages(server, to_session, signals, tail, max_bytes)),
        asyncio.create_task(_write_messages(server, from_session)),
        asyncio.create_task(_read_errors(server, tail)),
    ]
    try:
        yield read, write
    finally:
        # Until the process is gone its stdout and stderr are read on, to nowhere, so that it can't hang in a write.
        server.closing = True
        read.close()
        closing = asyncio.ensure_future(server.close())
        try:
            await asyncio.shield(closing)
        finally:
            if not closing.done():  # Cancelled: no grace.
                server.terminate()
            await uninterrupted(_end(closing, pumps, (to_session, read, write, from_session)))


async def _end(closing: asyncio.Future[None], pumps: Sequence[asyncio.Task[None]], streams: Sequence[Any]) -> None:
    await asyncio.wait([closing])
    for pump in pumps:
        pump.cancel()
    await asyncio.wait(pumps)
    for stream in streams:
        stream.close()


async def _start(options: ServerOptions) -> ServerProcess:
    """Start a command. Raises StartError where there is no such program; one that can't be run ends at once."""
    # What every program needs, and the server's own.
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | plain_values(options.env)
    program = _program(options, environment)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", process_guard.__file__, str(os.getpid()), program, *options.args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=_CHUNK,
            env=environment,
            cwd=options.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise StartError(f"{options.command!r} can't be run: {error}") from None
    return ServerProcess(process)


class ServerProcess:
    """A guard, the server behind it, and their pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.pipe_in, self.pipe_out, self.pipe_errors = process.stdin, process.stdout, process.stderr
        self.closing = False
        """True while it is being ended: its end is then no loss of the connection."""
        self._process = process

    async def how_it_ended(self) -> str:
        """In words, after its stdout ended."""
        code = await self._ended(STATUS_SECONDS)
        if code is None:
            return "closed its stdout"
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"ended (exit {code})" if code >= 0 else "ended with its guard"

    async def close(self) -> None:
        """End the process and all that came of it: by closing its stdin, by SIGTERM, by SIGKILL."""
        self.pipe_in.close()
        await self._ended(GRACE_SECONDS)
        self.terminate()
        if await self._ended(GUARD_SECONDS) is None:
            _log.warning("the guard %d doesn't end, and is killed", self._process.pid)
            self._process.kill()
            await self._ended(None)
        self._process._transport.close()  # type: ignore[attr-defined]  # a stray child may keep pipes open
        await asyncio.sleep(0)  # The loop closes them.

    def terminate(self) -> None:
        """Ask the guard to end the process and all that came of it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def _ended(self, seconds: float | None) -> int | None:
        """The exit status of the guard; None where it runs on for so many seconds. asyncio's own `wait` would also wait
        for the ends of pipes, which a stray child may keep open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self._process.returncode


async def _read_messages(
    server: ServerProcess, to_session: Any, signals: LifeSignals, tail: Tail, max_bytes: int
) -> None:
    """stdout, line by line. The end of it is the end of the connection."""
    reason = ""
    try:
        async for line in _lines(server.pipe_out, max_bytes):
            message = _message(line)
            if message is not None:
                await to_session.send(message)
            elif line.strip():
                tail.stray(line)
    except _TooLongError:
        reason = f"sent a message of more than {max_bytes} bytes (max_message_bytes)"
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # The session is over; what follows is read to nowhere.
    except OSError as error:
        reason = f"can't be read from: {error}"
    # The waiting calls get the reason first; then the session sees the end of the stream.
    if not server.closing:
        signals.lost((reason or await server.how_it_ended()) + tail.show())
    to_session.close()
    with contextlib.suppress(OSError):
        while await server.pipe_out.read(_CHUNK):
            pass


def _message(line: bytes) -> Any:
    """A line as the SDK's message, or None where it is none."""
    try:
        return parse_message(line)
    except ValueError:
        pass
    try:
        return mended_message(line) if line.lstrip().startswith(b"{") else None
    except (ValueError, RecursionError):
        return None


async def _write_messages(server: ServerProcess, from_session: Any) -> None:
    """stdin. A server that doesn't read holds up its callers, until their time limits."""
    try:
        async for message in from_session:
            server.pipe_in.write(dump_message(message) + b"\n")
            await server.pipe_in.drain()
    except OSError:
        pass  # It ended: its stdout says so, too.
    finally:
        from_session.close()


async def _read_errors(server: ServerProcess, tail: Tail) -> None:
    while data := await server.pipe_errors.read(_CHUNK):
        tail.add(data.decode(errors="replace"))


async def _lines(stream: asyncio.StreamReader, max_bytes: int) -> AsyncIterator[bytes]:
    """The lines of a stream, each byte looked at once; no more is read ahead. Raises _TooLongError."""
    parts: list[bytes] = []
    size = 0
    while data := await stream.read(_CHUNK):
        *ended, rest = data.split(b"\n")
        for piece in ended:
            if size + len(piece) > max_bytes:
                raise _TooLongError
            yield b"".join([*parts, piece])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > max_bytes:
            raise _TooLongError


class _TooLongError(Exception):
    """A line is longer than `max_message_bytes`."""


def _program(options: ServerOptions, environment: Mapping[str, str]) -> str:
    """The program's path. Raises StartError where there is none."""
    if os.name != "posix":
        raise StartError("servers are started on Linux and macOS alone; start it by itself and name its url")
    if options.cwd is not None and not options.cwd.is_dir():
        raise StartError(f"its cwd {str(options.cwd)!r} is no folder")
    assert options.command is not None
    if os.sep in options.command:
        return options.command
    found = shutil.which(options.command, path=environment.get("PATH", os.defpath))
    if found is None:
        raise StartError(f"there is no program {options.command!r} on PATH; install it, or give its whole path")
    return found
