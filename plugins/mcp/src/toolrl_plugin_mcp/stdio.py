"""The transport to a server that is started here: its process, one JSON message a line on its stdin and stdout.

The pipe is this plugin's own and not the SDK's, for four reasons: the process is started through a guard (`guard.py`),
so that nothing outlives the run; a message has a greatest length, and reading it takes linear time; lines that are no
message (many servers print on stdout) are counted and passed over without a traceback each; and how the process ended
is known, with the last it wrote to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_mcp import guard
from toolrl_plugin_mcp.sdk import dump_message, mended_message, parse_message
from toolrl_plugin_mcp.signals import LifeSignals

GRACE_SECONDS = 2.0
"""How long a server may take to end after its stdin was closed, before it gets SIGTERM."""
GUARD_SECONDS = 5.0
"""How long the guard may take to end everything, before it is killed itself."""
STATUS_SECONDS = 5.0
"""How long the guard's report is waited for after stdout ended."""
DRAIN_SECONDS = 0.1
"""How long after its end a process may still be heard of: an answer may be in the pipe."""
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_TAIL = 1000
"""Characters of stderr that are kept for messages."""
_CHUNK = 65536
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerCommand:
    """What is started."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None

    def environment(self) -> dict[str, str]:
        """What the process gets: what every program needs, and the server's own."""
        return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(self.env)


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
    command: ServerCommand, signals: LifeSignals, *, hide: Callable[[str], str], label: str, max_bytes: int
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the process, and end it and all that came of it when left. Raises StartError."""
    tail = Tail(hide, label)
    server = await ServerProcess.start(command)
    to_session, read = anyio.create_memory_object_stream[Any](0)
    write, from_session = anyio.create_memory_object_stream[Any](0)
    pumps = [
        asyncio.create_task(_read_messages(server, to_session, signals, tail, max_bytes)),
        asyncio.create_task(_write_messages(server, from_session)),
        asyncio.create_task(_read_errors(server, tail)),
        asyncio.create_task(_report_end(server, signals, tail)),
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
                server.end()
            try:
                await uninterrupted(_end(closing, pumps))
            finally:
                for stream in (to_session, read, write, from_session):
                    stream.close()


async def _end(closing: asyncio.Future[None], pumps: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait([closing])
    for pump in pumps:
        pump.cancel()
    await asyncio.wait(pumps)


class ServerProcess:
    """A guard, the server behind it, and their pipes."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.closing = False
        """True while it is being ended: its end is then no loss of the connection."""
        self._process = process
        self._control = control
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen())
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(cls, command: ServerCommand) -> ServerProcess:
        """Start a command. Raises StartError where there is no such program; one that can't be run ends at once."""
        environment = command.environment()
        program = _program(command, environment)
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), program, *command.args),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd=command.cwd,
                start_new_session=True,
                limit=_CHUNK,
            )
        except (OSError, ValueError) as error:
            ours.close()
            raise StartError(f"{command.command!r} can't be run: {error}") from None
        except BaseException:
            ours.close()  # A guard that was started after all ends by this.
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    async def how_it_ended(self, seconds: float | None = None) -> str:
        """In words; waits so long for it."""
        done, _ = await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.result() if done else "closed its stdout"

    async def close(self) -> None:
        """End the process and all that came of it: by closing its stdin, by SIGTERM, by SIGKILL."""
        self.stdin.close()
        await asyncio.wait([self._ended], timeout=GRACE_SECONDS)
        self.end()
        # The socket ends when nothing of the server is left.
        await asyncio.wait([self._listener], timeout=GUARD_SECONDS)
        if not self._listener.done():
            _log.warning("the guard %d doesn't end, and is killed", self._process.pid)
            self._process.kill()
            self._listener.cancel()
            await asyncio.wait([self._listener])
        self._control.close()
        await _release(self._process)

    def end(self) -> None:
        """Tell the guard to end the process and all that came of it."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def _listen(self) -> None:
        """What the guard reports, up to its end."""
        loop, said = asyncio.get_running_loop(), b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._control, 4096):
                said += data
                if said.endswith(b"\n") and not self._ended.done():
                    self._ended.set_result(_end_in_words(said.decode(errors="replace").strip()))
        if not self._ended.done():
            self._ended.set_result("ended with its guard")


def _end_in_words(line: str) -> str:
    """A report of the guard."""
    word, _, rest = line.partition(" ")
    if word == "error":
        return f"can't be run: {rest}"
    if word == "signal":
        names = {str(known.value): known.name for known in signal.Signals}
        return f"was killed by {names.get(rest, line)}"
    return f"ended ({line})"


async def _read_messages(
    server: ServerProcess, to_session: Any, signals: LifeSignals, tail: Tail, max_bytes: int
) -> None:
    """stdout, line by line. The end of it is the end of the connection."""
    reason = ""
    try:
        async for line in _lines(server.stdout, max_bytes):
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
        signals.lost((reason or await server.how_it_ended(STATUS_SECONDS)) + tail.show())
    to_session.close()
    with contextlib.suppress(OSError):
        while await server.stdout.read(_CHUNK):
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
            server.stdin.write(dump_message(message) + b"\n")
            await server.stdin.drain()
    except OSError:
        pass  # It ended: its stdout says so, too.
    finally:
        from_session.close()


async def _report_end(server: ServerProcess, signals: LifeSignals, tail: Tail) -> None:
    """The end of the process, also where a child of its own keeps its stdout open."""
    reason = await server.how_it_ended()
    await asyncio.sleep(DRAIN_SECONDS)
    if not server.closing:
        signals.lost(reason + tail.show())


async def _read_errors(server: ServerProcess, tail: Tail) -> None:
    while data := await server.stderr.read(_CHUNK):
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


async def _release(process: asyncio.subprocess.Process) -> None:
    """Close what asyncio holds of a process that ended. Its `wait` would also wait for the ends of pipes that a stray
    child may keep open; and closing before asyncio has reaped the process would race with its own waitpid."""
    async with asyncio.timeout(GUARD_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for this alone
            await asyncio.sleep(0.005)
    process._transport.close()  # type: ignore[attr-defined]


def _program(command: ServerCommand, environment: Mapping[str, str]) -> str:
    """The program's path. Raises StartError where there is none."""
    if os.name != "posix":
        raise StartError("servers are started on Linux and macOS alone; start it by itself and name its url")
    if command.cwd is not None and not command.cwd.is_dir():
        raise StartError(f"its cwd {str(command.cwd)!r} is no folder")
    if os.sep in command.command:
        return command.command
    found = shutil.which(command.command, path=environment.get("PATH", os.defpath))
    if found is None:
        raise StartError(f"there is no program {command.command!r} on PATH; install it, or give its whole path")
    return found
