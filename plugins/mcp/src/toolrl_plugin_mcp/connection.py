"""One connection to one server, kept alive.

The SDK's contexts hold cancel scopes that must be entered and left by one task, which they may cancel. So each life of
a connection is a task that opens it and closes it. The connection's owner, another task, notices that it broke, and
opens it again after a pause that doubles each time.
A call runs in a task of its own. Its caller waits for that task or for the loss of the connection, whichever comes
first. So a cancelled call can't harm the connection, and a lost connection answers all of its
calls at once.

    connection = McpConnection("time", setup)
    await connection.start()                       # raises ToolsetError
    result = await connection.ask(lambda link: link.call_tool("get_current_time", {"timezone": "UTC"}))
    await connection.stop()
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from toolrl.errors import ToolError, ToolsetError, TransientToolError
from toolrl.tools.cancellation import uninterrupted
from toolrl_plugin_mcp.http import WatchedClient
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.sdk import Link, connect, http_streams
from toolrl_plugin_mcp.server_options import ServerOptions, plain_values
from toolrl_plugin_mcp.signals import LifeSignals, in_words
from toolrl_plugin_mcp.stdio import stdio_streams

T = TypeVar("T")
CLOSE_SECONDS = 12.0
"""How long leaving a transport may take; that of a process takes 8 at most."""
REASON_SECONDS = 1.0
"""How long a transport is waited for to say why a connection ended."""
_FORGOTTEN = (
    "session terminated",
    "session not found",
    "bad request: no valid session id provided",
    "bad request: server not initialized",
)
"""How servers behind a URL that were restarted refuse a call of an old session."""
_log = logging.getLogger(__name__)


class NotRunError(Exception):
    """A call that the server didn't take on: it can be made again."""


@dataclass(frozen=True)
class ServerSetup:
    """What all connections to one server have in common."""

    name: str
    server: ServerOptions
    options: McpOptions
    hide: Callable[[str], str]
    """Takes secrets out of messages."""
    restarted: Callable[[], None]
    """Called when a lost connection works again."""
    endpoint: str
    """What the server's breakers and limits are kept under."""

    def connect(self, signals: LifeSignals) -> AbstractAsyncContextManager[Link]:
        """A new connection; it reports trouble by the signals."""
        server, max_bytes = self.server, self.options.max_message_bytes
        if server.url is None:
            label = f"MCP server {self.name!r}"
            streams = stdio_streams(server, signals, hide=self.hide, label=label, max_bytes=max_bytes)
            return connect(streams, signals)
        sse = server.transport == "sse"
        client = WatchedClient(plain_values(server.headers), signals, sse=sse, max_bytes=max_bytes)
        return connect(http_streams(server.url, client, signals, sse=sse), signals)


class McpConnection:
    """See the module's docstring. Its state changes in the owner alone."""

    def __init__(self, label: str, setup: ServerSetup, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called whenever it may have become usable, or down."""
        self.label = label
        self.down = True
        """Not started, stopped, or lost too often; a lost one that restarts isn't down."""
        self.reason = ""
        """Why it was lost the last time."""
        self.restarts = 0
        """How often it was opened again."""
        self.in_flight = 0
        """Calls under way."""
        self.tools: Sequence[Mapping[str, Any]] = ()
        """What the server listed when it last started, as on the wire: `name`, `description`, `inputSchema`."""
        self._setup = setup
        self._changed = changed
        self._link: Link | None = None
        """None where it isn't open."""
        self._signals: LifeSignals | None = None
        self._owner: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        """What is asked of the link, cancelled calls included that are still telling the server so."""
        self._misses = 0
        """Ends in a row without a call that succeeded in between."""

    @property
    def usable(self) -> bool:
        """Whether a call can be made now: not while it is found out whether the connection still works."""
        return self._link is not None and self._signals is not None and self._signals.good

    async def start(self) -> None:
        """Open it. A server that doesn't start the first time is a mistake to be told at once, so there is no second
        try. Raises ToolsetError."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._misses = 0
        self._owner = asyncio.create_task(self._own(opened), name=f"mcp {self.label}")
        try:
            await asyncio.wait([self._owner, opened], return_when=asyncio.FIRST_COMPLETED)
            if self._owner.done():
                self._owner.result()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close it, and wait until nothing of it is left. A cancellation meanwhile takes effect afterwards."""
        if self._owner is not None:
            owner, self._owner = self._owner, None
            owner.cancel()
            await uninterrupted(asyncio.gather(owner, return_exceptions=True))
        for task in self._tasks:
            task.cancel()
        await uninterrupted(asyncio.gather(*self._tasks, return_exceptions=True))

    async def ask(self, work: Callable[[Link], Coroutine[Any, Any, T]], *, repeatable: bool = True) -> T:
        """Do something with the link. Raises ToolError for what the model should read, and where the connection is
        lost meanwhile (TransientToolError where the work is `repeatable`); NotRunError where there is no connection."""
        link, signals = self._link, self._signals
        if link is None or signals is None or not signals.good:
            raise NotRunError
        call = self._task(work(link))
        self.in_flight += 1
        try:
            await signals.wait_for(call)
        except asyncio.CancelledError:
            call.cancel()
            signals.doubt("a call was cancelled")
            raise
        finally:
            self.in_flight -= 1
        if not call.done():
            call.cancel()
            raise _lost_call(repeatable)
        return self._answer(call, signals, repeatable)

    def _answer(self, call: asyncio.Future[T], signals: LifeSignals, repeatable: bool) -> T:
        try:
            result = call.result()
        except MCPError as error:
            code, message = error.error.code, error.error.message
            if self._setup.server.url is not None and message.strip().lower() in _FORGOTTEN:
                signals.lost(message)
                raise NotRunError from None
            # Servers use this code for errors of their own, too.
            if code == CONNECTION_CLOSED and message.startswith(("Connection closed", "SSE stream ")):
                # Of this call's stream, or of the whole connection: that is known in a moment, or found out by asking.
                signals.doubt(message)
                raise _lost_call(repeatable) from None
            self._misses = 0  # It works: that was its answer.
            raise ToolError(self._setup.hide(message) or f"The server answered with the error {code}.") from None
        except asyncio.CancelledError:
            raise _lost_call(repeatable) from None  # By the end of the SDK's tasks: nothing else cancels it.
        except (ValueError, RuntimeError) as error:  # The SDK's check of what came.
            raise ToolError(
                self._setup.hide(f"The server's answer can't be read: {_unreadable(error)}")[:500]
            ) from None
        except Exception as error:  # noqa: BLE001 - streams that are closed, in all their forms
            signals.doubt(in_words(error))
            raise _lost_call(repeatable) from None
        self._misses = 0
        return result

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved, so that asyncio doesn't warn of it.

    # The owner.

    async def _own(self, opened: asyncio.Future[None]) -> None:
        """Open, keep, close, and again, until it is cancelled. Raises ToolsetError where the first opening fails."""
        try:
            while True:
                self.reason = await self._live(opened)
                if not opened.done():
                    raise ToolsetError(f"{self.label} didn't start: {self.reason}", hint=self._start_hint())
                await asyncio.sleep(self._delay())
        finally:
            self.down = True
            self._changed()

    def _start_hint(self) -> str | None:
        if "max_message_bytes" in self.reason:
            return "Its list of tools is that long: raise `max_message_bytes`."
        return "Is it running, and are its `url`, `type` and `headers` right?" if self._setup.server.url else None

    def _delay(self) -> float:
        """Before the next opening. After too many without a call that succeeded the server counts as down."""
        restart = self._setup.options.restart
        self._misses += 1
        self.restarts += 1
        if self._misses <= restart.attempts:
            # Scattered, so that instances that fell together don't rise together.
            delay: float = min(restart.first_delay * 2 ** (self._misses - 1), restart.max_delay) * random.uniform(
                0.75, 1.0
            )
            _log.warning("%s is lost and restarts in %.1f s: %s", self.label, delay, self.reason)
            return delay
        if not self.down:
            _log.error("%s is down, and is tried again every %g s: %s", self.label, restart.max_delay, self.reason)
            self.down = True
            self._changed()
        return restart.max_delay

    async def _live(self, opened: asyncio.Future[None]) -> str:
        """One life of the connection; returns why it ended."""
        self._signals = signals = LifeSignals()
        ready: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        life = asyncio.create_task(self._hold(signals, ready))
        seconds = self._setup.options.start_timeout
        try:
            await signals.wait_for(ready, seconds)
            if ready.done():
                self._link, self.down = ready.result(), False
                self._changed()
                if opened.done():
                    self._setup.restarted()
                else:
                    opened.set_result(None)
                await self._serve(self._link, signals)
            else:
                signals.lost(f"not ready within {seconds:g} s (start_timeout)")
        finally:
            self._link = None
            signals.close()
            error = await uninterrupted(_end(life, CLOSE_SECONDS if ready.done() else 0))
        reason = signals.reason or (in_words(error) if error is not None else "it was closed")
        return self._setup.hide(reason if ready.done() else signals.with_doubt(reason))

    async def _hold(self, signals: LifeSignals, ready: asyncio.Future[Link]) -> None:
        """Open the connection, and close it when it is lost; in a task of its own, which the SDK may cancel."""
        try:
            async with self._setup.connect(signals) as link:
                self.tools = await link.list_tools()
                ready.set_result(link)
                await asyncio.wait([signals.over])
        finally:
            signals.close()

    async def _serve(self, link: Link, signals: LifeSignals) -> None:
        """Until it is lost."""
        while True:
            await signals.wake.wait()
            signals.wake.clear()
            if signals.over.done():
                return
            doubts = signals.doubts
            probe = self._task(link.list_tools())
            seconds = self._setup.options.restart.probe_timeout
            await signals.wait_for(probe, seconds)
            if not probe.done():
                probe.cancel()  # Not waited for: to tell a server that hangs takes long, too.
                signals.lost(f"it doesn't answer within {seconds:g} s")
                continue
            error = None if probe.cancelled() else probe.exception()
            if error is None and not probe.cancelled():
                signals.doubts -= doubts
                self._changed()
                continue
            # The transport may be about to report why, in better words.
            await asyncio.wait([signals.over], timeout=REASON_SECONDS)
            signals.lost(in_words(error) if error is not None else "a request was cancelled")


async def _end(life: asyncio.Task[None], seconds: float) -> BaseException | None:
    """Wait so long for the end of a task, then cancel it; returns what it raised."""
    await asyncio.wait([life], timeout=seconds)
    life.cancel()
    await asyncio.wait([life])
    return None if life.cancelled() else life.exception()


def _lost_call(repeatable: bool) -> ToolError:
    """The answer to a call whose connection is gone."""
    kind = TransientToolError if repeatable else ToolError
    return kind(
        "The connection to the server of this tool was lost during the call. It may have had its effect, or not."
    )


def _unreadable(error: Exception) -> str:
    """What is wrong with an answer, of pydantic's long words the first that count."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    first = errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
