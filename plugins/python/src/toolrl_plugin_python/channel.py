"""A socket to a job, over which lines go in and out."""

from __future__ import annotations

import asyncio
import socket
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
