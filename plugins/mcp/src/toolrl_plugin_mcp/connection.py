"""One connection to one server, kept alive.

The SDK's contexts hold cancel scopes that must be entered and left by one task. So every connection has an owner: a
task that opens it, keeps it, notices that it broke, closes it, and opens it again after a pause that doubles each time.
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
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from toolrl.errors import ToolError, ToolsetError, TransientToolError
from toolrl.tools.cancellation import Watch, uninterrupted
from toolrl_plugin_mcp.catalog import Listing
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
    listed: Callable[[Listing], None]
    """Called with each new list of tools."""
    restarted: Callable[[], None]
    """Called when a lost connection works again."""
    endpoint: str
    """What the server's breakers and limits are kept under."""

    def connect(self, signals: LifeSignals) -> AbstractAsyncContextManager[Link]:
        """A new connection; it reports trouble by the signals."""
        server, most = self.server, self.options.max_message_bytes
        if server.url is None:
            label = f"MCP server {self.name!r}"
            return connect(stdio_streams(server, signals, hide=self.hide, label=label, max_bytes=most), signals)
        sse = server.transport == "sse"
        client = WatchedClient(plain_values(server.headers), signals, sse=sse, max_bytes=most)
        return connect(http_streams(server.url, client, sse=sse, max_bytes=most), signals)


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
        self._setup = setup
        self._changed = changed
        self._listing: Listing | None = None
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
        except ValueError as error:  # The SDK's check of what came.
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
        setup = self._setup
        try:
            while True:
                self.reason = await self._live(opened)
                if not opened.done():
                    hint = "Is it running, and are its `url`, `type` and `headers` right?" if setup.server.url else None
                    raise ToolsetError(f"{self.label} didn't start: {self.reason}", hint=hint)
                await asyncio.sleep(self._delay())
        finally:
            self.down = True
            self._changed()

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
        watch, stack = Watch(), AsyncExitStack()
        problem: BaseException | None = None
        try:
            if await self._open(stack, signals):
                if opened.done():
                    self._setup.restarted()
                else:
                    opened.set_result(None)
                await self._serve(signals)
        except BaseException as error:  # noqa: BLE001 - whatever a transport raises means that it is gone
            problem = error
        was_open, self._link = self._link is not None, None
        signals.close()
        closing = await self._leave(stack)
        if problem is not None and not watch.failed(problem):
            raise problem
        if problem is None or isinstance(problem, asyncio.CancelledError):
            # The SDK's tasks cancel their owner, and raise the reason when they are left.
            problem = closing or problem
        reason = signals.reason or (in_words(problem) if problem is not None else "it was closed")
        return self._setup.hide(reason if was_open else signals.with_doubt(reason))

    async def _open(self, stack: AsyncExitStack, signals: LifeSignals) -> bool:
        """Open the connection. False where it was lost meanwhile; raises whatever a transport raises."""
        seconds = self._setup.options.start_timeout
        limit = asyncio.timeout(seconds)

        def lost(_: object) -> None:
            with suppress(RuntimeError):  # It is open by now, or its opening failed.
                limit.reschedule(0)

        signals.over.add_done_callback(lost)  # The SDK doesn't see each way in which a connection ends.
        try:
            async with limit:
                link = await stack.enter_async_context(self._setup.connect(signals))
                await self._list(link)
        except TimeoutError:
            if not limit.expired():
                raise
            signals.lost(f"not ready within {seconds:g} s (start_timeout)")
            return False
        finally:
            signals.over.remove_done_callback(lost)
        self._link, self.down = link, False
        self._changed()
        return True

    async def _leave(self, stack: AsyncExitStack) -> BaseException | None:
        """Close the transport; returns what it raised."""
        watch = Watch()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await stack.aclose()
        except BaseException as error:  # see above
            if not watch.failed(error):
                raise
            _log.debug("%s: closing: %s", self.label, self._setup.hide(in_words(error)))
            return error
        return None

    async def _serve(self, signals: LifeSignals) -> None:
        """Until it is lost; raises what a transport raises."""
        assert self._link is not None
        while True:
            await signals.wake.wait()
            signals.wake.clear()
            if signals.over.done():
                return
            # A changed list and a doubt have one remedy: to ask for the list.
            doubts = signals.doubts
            probe = self._task(self._list(self._link))
            seconds = self._setup.options.restart.probe_timeout
            await signals.wait_for(probe, seconds)
            if not probe.done():
                probe.cancel()  # Not waited for: to tell a server that hangs takes long, too.
                signals.lost(f"it doesn't answer within {seconds:g} s")
                return
            if probe.cancelled() or probe.exception() is not None:
                # The transport may be about to say why, in better words.
                await asyncio.wait([signals.over], timeout=REASON_SECONDS)
            probe.result()
            signals.doubts -= doubts
            self._changed()

    async def _list(self, link: Link) -> None:
        listing = Listing(await link.list_tools(), link.has_resources)
        if listing != self._listing:
            self._listing = listing
            self._setup.listed(listing)


def _lost_call(repeatable: bool) -> ToolError:
    """The answer to a call whose connection is gone."""
    kind = TransientToolError if repeatable else ToolError
    return kind(
        "The connection to the server of this tool was lost during the call. It may have had its effect, or not."
    )


def _unreadable(error: ValueError) -> str:
    """What is wrong with an answer, of pydantic's long words the first that count."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    first = errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
