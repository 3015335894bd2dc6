"""What connects the run to a job: a socket over which lines go in and out, and the pipes of its output."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress


class LineChannel:
    """The run's end of a stream socket. All that comes is hostile bytes: a line has a longest length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        """Made by `open`."""
        self._reader = reader
        self._writer = writer
        self._theirs = theirs

    @classmethod
    async def open(cls, longest: int) -> LineChannel:
        """A pair of sockets; a line that comes may have so many bytes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            return cls(*await asyncio.open_connection(sock=ours, limit=longest), theirs)
        except BaseException:
            ours.close()
            theirs.close()
            raise

    @property
    def descriptor(self) -> int:
        """The job's end, to be handed over."""
        return self._theirs.fileno()

    def handed_over(self) -> None:
        """The job has its end: when it closes that, nothing more comes."""
        self._theirs.close()

    async def send(self, data: bytes) -> None:
        """Hand it data; where the job doesn't read, this waits. A job that is gone reads nothing, which is no error."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def receive(self) -> bytes | None:
        """The next line with its end; None where the job hung up, empty where the line is too long."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            return b""
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def receive_bytes(self, count: int) -> bytes | None:
        """So many bytes; None where the job hung up before."""
        try:
            return await self._reader.readexactly(count)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def hang_up(self) -> None:
        """End the connection, whatever still holds the job's end."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close both ends."""
        self._theirs.close()
        self.hang_up()
        with suppress(OSError):
            await self._writer.wait_closed()


_PIECE = 1 << 16
_MOST_PIECES = 20
_FLOOD_TIMES, _FLOOD_EXTRA = 16, 1 << 20


class Drain:
    """Reads a pipe on the event loop until its end: what is kept is its beginning and, where asked for, its end."""

    def __init__(self, descriptor: int, head: int, tail: int = 0, *, on_flood: Callable[[], None]) -> None:
        """`head` and `tail` are the bytes kept. `on_flood` is called once where very much more than these has come.
        The descriptor is the drain's from now on."""
        self.total = 0
        """Bytes that have come."""
        self._descriptor: int | None = descriptor
        self._head_size, self._tail_size = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._on_flood: Callable[[], None] | None = on_flood
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def left_out(self) -> int:
        """How many bytes in the middle, or at the end, aren't kept."""
        return max(0, self.total - self._head_size - self._tail_size)

    def parts(self) -> tuple[bytes, bytes]:
        """The beginning and the end that were kept."""
        return bytes(self._head), bytes(self._tail[-self._tail_size :] if self._tail_size else b"")

    def rest(self) -> None:
        """Read what is there now: as much as a pipe can hold, so that this ends even with a busy writer."""
        for _ in range(_MOST_PIECES):
            if not self._read():
                break

    def restart(self) -> None:
        """Forget what came so far: the next cell's output begins."""
        self.total = 0
        self._head, self._tail = bytearray(), bytearray()

    def close(self) -> None:
        """Read no more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _read(self) -> bool:
        """Take one piece; false where there is none now."""
        if self._descriptor is None:
            return False
        try:
            piece = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self.close()
            return False
        self.total += len(piece)
        room = max(0, self._head_size - len(self._head))
        self._head += piece[:room]
        if self._tail_size:
            self._tail += piece[room:]
            if len(self._tail) > self._tail_size + _PIECE:
                del self._tail[: -self._tail_size]
        flood = _FLOOD_TIMES * (self._head_size + self._tail_size) + _FLOOD_EXTRA
        if self.total > flood and self._on_flood is not None:
            flooded, self._on_flood = self._on_flood, None
            flooded()
        return True
