"""One WebSocket to an OpenEnv server: a session of its own, in which messages are answered one after another.

Answers carry no id, so they belong to messages by their order alone. So a request that is given up (a time limit, a
cancelled episode) ends the session, and so does a message that no request asked for, where it is there before the next
request goes out: no reward is credited to the wrong step. One request at a time; callers with several queue them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from toolrl.errors import ToolsetError
from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_openenv.wire import CAPACITY, CLOSE, FATAL, STATE, Answer, Failure, read_answer

_TOO_BIG = 1009
"""The code with which either side of a WebSocket refuses a message as too long."""
NOT_THERE = "Is the server running, and is `url` its address?"
NO_WEBSOCKET = (
    "Something answers there, but gives no WebSocket: `url` is the address of an OpenEnv server, without `/ws`. One "
    "made with openenv-core before 0.2 has none."
)
FULL = "Others use its sessions: end them, or let it take more (max_concurrent_envs)."
SLOW_SESSION = "It may take long to make an environment: raise `connect_timeout`."


class LostError(ToolsetError):
    """The connection is gone, and with it what the server knew of the episode."""


class FullError(ToolsetError):
    """The server has as many sessions as it takes."""


class SlowError(ToolsetError):
    """No answer came in time."""


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    url: str
    """http, https, ws or wss; with a path where the server has one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_timeout: float = 10.0
    close_timeout: float = 10.0
    max_message_bytes: int = 100 * 2**20
    """Bytes of one message of the server."""

    @property
    def websocket(self) -> str:
        """The address of its WebSocket."""
        return self._join({"http": "ws", "https": "wss"}, "/ws")

    def http(self, path: str) -> str:
        """The address of one of its pages."""
        return self._join({"ws": "http", "wss": "https"}, path)

    @property
    def shown(self) -> str:
        """Without what may be secret: user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def hide(self, text: str) -> str:
        """A text without what may be secret: values of headers, user, password and query."""
        parts = urlsplit(self.url)
        userinfo = parts.netloc.rpartition("@")[0]
        for secret in (*self.headers.values(), userinfo, parts.password or "", parts.query):
            if len(secret) > 3:
                text = text.replace(secret, "***")
        return text

    @property
    def is_loopback(self) -> bool:
        """True for this machine, which no proxy leads to."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def _join(self, schemes: Mapping[str, str], path: str) -> str:
        parts = urlsplit(self.url)
        base = parts.path.rstrip("/").removesuffix("/ws")
        return urlunsplit((schemes.get(parts.scheme, parts.scheme), parts.netloc, base + path, parts.query, ""))


class OpenEnvConnection:
    """An open session."""

    def __init__(self, socket: Any, address: Address) -> None:
        self._socket = socket
        self._address = address
        self._began = False
        self.lost: str | None = None
        """Why the connection is gone."""

    async def request(self, message: str, seconds: float) -> Answer:
        """Send a message and wait for its answer. Raises LostError, SlowError."""
        if self.lost is not None:
            raise self._lose()
        try:
            async with asyncio.timeout(seconds):
                await self._refuse_unasked()
                # Where the server has hung up, its last words may still be there to read: that it is full.
                with suppress(ConnectionError, ConnectionClosed):
                    await self._socket.send(message)
                answer = read_answer(await self._socket.recv())
        except TimeoutError:
            self.lost = f"no answer within {seconds:g} s"
            raise SlowError(f"{self._address.shown} gave {self.lost}") from None
        except asyncio.CancelledError:
            self.lost = "a request was given up"
            raise
        except LostError:
            raise
        except Exception as error:
            raise self._lose(error) from error
        if isinstance(answer, Failure) and answer.code in FATAL:
            self.lost = f"{answer.message[:500]} ({answer.code})"
        return answer

    async def close(self) -> None:
        """End the session and wait until the server has let go of it, for `close_timeout` seconds at most. A server
        that is still at work on a step reads nothing; there it is only hung up on."""
        polite, self.lost = self.lost is None, self.lost or "it was closed"
        try:
            if polite:
                with suppress(Exception):
                    async with asyncio.timeout(self._address.close_timeout):
                        await self._socket.send(CLOSE)
                        await self._socket.wait_closed()
            # The closing handshake has its own time limit; after it the socket is closed in any case.
            await self._socket.close()
        except BaseException as error:
            self._socket.transport.abort()
            if not isinstance(error, Exception):
                raise

    async def _refuse_unasked(self) -> None:
        began, self._began = self._began, True
        with suppress(TimeoutError, ConnectionError, ConnectionClosed):
            if began:  # Before, it is the word of a server that is full.
                async with asyncio.timeout(0):
                    raw = await self._socket.recv()
                raise self._lose(RuntimeError(f"it sent what no request asked for: {raw[:200]!r}"))

    def _lose(self, error: Exception | None = None) -> LostError:
        self.lost = self.lost or self._address.hide(self._in_words(error)[:500])
        return LostError(f"the connection to {self._address.shown} is lost: {self.lost}")

    def _in_words(self, error: Exception | None) -> str:
        if isinstance(error, ConnectionClosed):
            if error.sent is not None and error.sent.code == _TOO_BIG:
                limit = self._address.max_message_bytes
                return f"the server's answer was longer than {limit} bytes (option max_message_bytes of openenv)"
            if error.rcvd is not None and error.rcvd.code == _TOO_BIG:
                return f"a message to the server was longer than it takes: {error.rcvd.reason}".rstrip(": ")
        return f"{type(error).__name__}: {error}"


async def connect(address: Address) -> OpenEnvConnection:
    """Open a session. A server says that it has no place for one only after the handshake, so the state is asked for:
    whatever the answer, there is a session then. Raises LostError, FullError, SlowError."""
    try:
        socket = await open_socket(
            address.websocket,
            additional_headers=dict(address.headers),
            open_timeout=address.connect_timeout,
            close_timeout=address.close_timeout,
            max_size=address.max_message_bytes,
            # An environment may keep its server's event loop busy for longer than any ping would wait.
            ping_interval=None,
            compression=None,
            proxy=None if address.is_loopback else True,
        )
    except Exception as error:  # OSError, TimeoutError, and what the library makes of a bad answer
        reason = address.hide(f"{type(error).__name__}: {error}")[:500]
        hint = NO_WEBSOCKET if isinstance(error, InvalidStatus) else NOT_THERE
        raise LostError(f"{address.shown} can't be reached: {reason}", hint=hint) from error
    connection = OpenEnvConnection(socket, address)
    try:
        answer = await connection.request(STATE, address.connect_timeout)
        # An environment whose state can't be asked for has a session all the same.
        if isinstance(answer, Failure) and answer.code == CAPACITY:
            raise FullError(f"{address.shown}: {answer.message[:300]}", hint=FULL)
        if isinstance(answer, Failure) and answer.code in FATAL:
            said = f"{answer.message[:500]} ({answer.code})"
            raise LostError(f"{address.shown} opened no session: {said}", hint="Its log says why.")
    except BaseException as error:
        await uninterrupted(connection.close())
        if isinstance(error, SlowError):
            error.hint = SLOW_SESSION
        raise
    return connection
