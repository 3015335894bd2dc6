"""One connection to one server, kept alive.

The SDK's contexts hold cancel scopes that must be entered and left by one task. So every connection has an owner: a
task that opens it, keeps it, notices that it broke, closes it, and opens it again after a pause that doubles each time.
A call runs in a task of its own. Its caller waits for that task or for the loss of the connection, whichever comes
first. So a cancelled call can't harm the connection, and a lost connection answers all of its
calls at once.

    connection = McpConnection("time", opener, RestartOptions(), start_timeout=60)
    await connection.start()                       # raises ToolsetError
    result = await connection.call("get_current_time", {"timezone": "UTC"})
    await connection.stop()
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Literal, TypeVar

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from toolrl.errors import ToolError, ToolsetError, TransientToolError
from toolrl.tools.cancellation import Watch, uninterrupted
from toolrl_plugin_mcp.catalog import Listing
from toolrl_plugin_mcp.options import RestartOptions
from toolrl_plugin_mcp.sdk import Link
from toolrl_plugin_mcp.signals import LifeSignals

T = TypeVar("T")
CLOSE_SECONDS = 12.0
"""How long leaving a transport may take; that of a process takes 8 at most."""
REASON_SECONDS = 1.0
"""How long a transport is waited for to say why a connection ended."""
RELIST_SECONDS = 1.0
"""Between two lists that a server is asked for because it said that its tools changed."""
State = Literal["new", "starting", "ready", "waiting", "failed", "stopped"]
Opener = Callable[[LifeSignals], AbstractAsyncContextManager[Link]]
"""Makes a new connection; it reports trouble by the signals."""
_FORGOTTEN = (
    "session terminated",
    "session not found",
    "bad request: no valid session id provided",
    "bad request: server not initialized",
)
"""How servers behind a URL that were restarted refuse a call of an old session."""
_log = logging.getLogger(__name__)


class McpLostError(Exception):
    """The connection is gone; the message says how."""


class NotRunError(Exception):
    """A call that the server didn't take on: it can be made again."""


class McpConnection:
    """See the module's docstring. Its state changes in the owner alone."""

    def __init__(
        self,
        label: str,
        opener: Opener,
        restart: RestartOptions,
        *,
        start_timeout: float,
        forgets: bool = False,
        hide: Callable[[str], str] = str,
        changed: Callable[[], None] = lambda: None,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        """`forgets`: the server is behind a URL, and may have forgotten the session. `hide` takes secrets out of
        messages. `changed` is called whenever state or listing is another one, `restarted` when it works again."""
        self.label = label
        self.state: State = "new"
        self.listing = Listing()
        """What the server has, from its last answer."""
        self.restarts = 0
        """How often it was opened again."""
        self._opener = opener
        self._restart = restart
        self._start_timeout = start_timeout
        self._forgets = forgets
        self._hide = hide
        self._changed = changed
        self._restarted = restarted
        self._link: Link | None = None
        self._signals: LifeSignals | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        """What is asked of the link, cancelled calls included that are still telling the server so."""
        self._waiting = 0
        self._reason = ""
        self._ready_at: float | None = None
        """When this life of it became ready, by the monotonic clock."""
        self._misses = 0
        """Ends in a row without a call that succeeded in between."""

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self._waiting

    @property
    def usable(self) -> bool:
        """Whether a call can be made now: not while it is found out whether the connection still works."""
        return self.state == "ready" and self._signals is not None and self._signals.good

    @property
    def reason(self) -> str:
        """Why it isn't there."""
        return self._reason

    async def start(self) -> None:
        """Open it. A server that doesn't start the first time is a mistake to be told at once, so there is no second
        try. Raises ToolsetError."""
        self._stopping.clear()
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._misses = 0
        self._owner = asyncio.create_task(self._own(opened), name=f"mcp {self.label}")
        try:
            await asyncio.shield(opened)
        except McpLostError as error:
            hint = "Is it running, and are its `url`, `type` and `headers` right?" if self._forgets else None
            raise ToolsetError(f"{self.label} didn't start: {error}", hint=hint) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close it, and wait until nothing of it is left. A cancellation meanwhile takes effect afterwards."""
        self._stopping.set()
        if self._signals is not None:
            self._signals.close()
        if self._owner is not None:
            owner, self._owner = self._owner, None
            if self._link is None and self.state != "waiting":
                owner.cancel()  # It is opening, which may take long.
            await uninterrupted(_ended(owner))
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await uninterrupted(_ended(*self._tasks))

    async def ask(self, work: Callable[[Link], Coroutine[Any, Any, T]], *, repeatable: bool = True) -> T:
        """Do something with the link. Raises ToolError for what the model should read, and where the connection is
        lost meanwhile (TransientToolError where the work is `repeatable`); NotRunError where there is no connection."""
        link, signals = self._link, self._signals
        if not self.usable or link is None or signals is None:
            raise NotRunError
        call = self._task(work(link))
        self._waiting += 1
        try:
            await signals.wait_for(call)
        except asyncio.CancelledError:
            call.cancel()
            signals.doubt("a call was cancelled")
            raise
        finally:
            self._waiting -= 1
        if not call.done():
            call.cancel()
            raise _lost_call(repeatable)
        return self._answer(call, signals, repeatable)

    def _answer(self, call: asyncio.Future[T], signals: LifeSignals, repeatable: bool) -> T:
        try:
            result = call.result()
        except MCPError as error:
            code, message = error.error.code, error.error.message
            if self._forgets and message.strip().lower() in _FORGOTTEN:
                signals.lost(message)
                raise NotRunError from None
            # Servers use this code for errors of their own, too.
            if code == CONNECTION_CLOSED and message.startswith(("Connection closed", "SSE stream ")):
                # Of this call's stream, or of the whole connection: that is known in a moment, or found out by asking.
                signals.doubt(message)
                raise _lost_call(repeatable) from None
            self._misses = 0  # It works: that was its answer.
            raise ToolError(self._hide(message) or f"The server answered with the error {code}.") from None
        except asyncio.CancelledError:
            raise _lost_call(repeatable) from None  # By the end of the SDK's tasks: nothing else cancels it.
        except ValueError as error:  # The SDK's check of what came.
            raise ToolError(self._hide(f"The server's answer can't be read: {_unreadable(error)}")[:500]) from None
        except Exception as error:  # noqa: BLE001 - streams that are closed, in all their forms
            signals.doubt(_in_words(error))
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
        """Open, keep, close, and again, until `stop`. Where the first opening fails there is no second."""
        try:
            while not self._stopping.is_set():
                if self.state != "failed":
                    self._set("starting")
                self._ready_at = None
                reason = await self._keep(opened)
                if self._stopping.is_set():
                    break
                self._reason = reason
                if not opened.done():
                    opened.set_exception(McpLostError(reason))
                    opened.exception()  # Retrieved, in case the caller no longer waits.
                    break
                if self._ready_at is not None and time.monotonic() - self._ready_at > self._restart.max_delay:
                    self._misses = 0  # It worked for a while.
                await self._pause(reason)
        finally:
            self._set("stopped")
            if not opened.done():
                opened.cancel()

    async def _pause(self, reason: str) -> None:
        """Before the next opening. After too many without a call that succeeded the server counts as down."""
        self._misses += 1
        self.restarts += 1
        if self._misses > self._restart.attempts:
            delay = self._restart.max_delay
            if self.state != "failed":
                _log.error("%s is down, and is tried again every %g s: %s", self.label, delay, reason)
            self._set("failed")
        else:
            # Scattered, so that instances that fell together don't rise together.
            delay = min(self._restart.first_delay * 2 ** (self._misses - 1), self._restart.max_delay)
            delay *= random.uniform(0.75, 1.0)
            _log.warning("%s is lost and restarts in %.1f s: %s", self.label, delay, reason)
            self._set("waiting")
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    async def _keep(self, opened: asyncio.Future[None]) -> str:
        """One life of the connection; returns why it ended."""
        self._signals = signals = LifeSignals()
        watch, stack = Watch(), AsyncExitStack()
        problem: BaseException | None = None
        try:
            await self._live(stack, signals, opened)
        except BaseException as error:  # noqa: BLE001 - whatever a transport raises means that it is gone
            problem = error
        finally:
            self._link = None
            if self.state == "ready":
                self._set("waiting")
            signals.close()
        closing = await self._leave(stack)
        if problem is not None and not watch.failed(problem):
            raise problem
        if problem is None or isinstance(problem, asyncio.CancelledError):
            # The SDK's tasks cancel their owner, and raise the reason when they are left.
            problem = closing or problem
        reason = signals.reason or (_in_words(problem) if problem is not None else "it was closed")
        if self._ready_at is None and signals.doubted not in reason:
            reason = signals.doubted if reason in signals.doubted else f"{reason} ({signals.doubted})"
        if self._ready_at is None and signals.status and str(signals.status) not in reason:
            reason += f" (HTTP {signals.status})"
        return self._hide(reason)

    async def _live(self, stack: AsyncExitStack, signals: LifeSignals, opened: asyncio.Future[None]) -> None:
        """Open the connection, and keep it until `stop`. Raises LostError, and whatever a transport raises."""
        limit, clock = asyncio.timeout(self._start_timeout), asyncio.get_running_loop().time

        def lost(_: object) -> None:
            if signals.reason:  # The SDK doesn't see each way in which a connection ends.
                with suppress(RuntimeError):  # It is open by now, or its opening failed.
                    limit.reschedule(clock())

        signals.over.add_done_callback(lost)
        try:
            async with limit:
                link = await stack.enter_async_context(self._opener(signals))
                listing = await self._list(link)
        except TimeoutError:
            if not limit.expired():
                raise
            reason = signals.reason or f"not ready within {self._start_timeout:g} s (start_timeout)"
            raise McpLostError(reason) from None
        finally:
            signals.over.remove_done_callback(lost)
        self._link, self.listing = link, listing
        self._ready_at = time.monotonic()
        self._set("ready")
        if opened.done():
            self._restarted()
        else:
            opened.set_result(None)
        await self._serve(link, signals)

    async def _leave(self, stack: AsyncExitStack) -> BaseException | None:
        """Close the transport; returns what it raised."""
        watch = Watch()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await stack.aclose()
        except BaseException as error:  # see above
            if not watch.failed(error):
                raise
            _log.debug("%s: closing: %s", self.label, self._hide(_in_words(error)))
            return error
        return None

    async def _serve(self, link: Link, signals: LifeSignals) -> None:
        """Until `stop`. Raises LostError."""
        while True:
            # A server that changes its list all the time is asked for it once a second.
            await signals.woken(rest=RELIST_SECONDS)
            if self._stopping.is_set():
                return
            if signals.reason:
                raise McpLostError(signals.reason)
            # A changed list and a doubt have one remedy: to ask for the list.
            doubted = signals.doubts
            probe = self._task(self._list(link))
            seconds = self._restart.probe_timeout
            await signals.wait_for(probe, seconds)
            if not probe.done():
                probe.cancel()  # Not waited for: to tell a server that hangs takes long, too.
                raise McpLostError(signals.reason or f"it doesn't answer within {seconds:g} s")
            if probe.cancelled() or probe.exception() is not None:
                # The transport may be about to say why, in better words.
                await asyncio.wait([signals.over], timeout=REASON_SECONDS)
            listing = probe.result()
            signals.dispelled(doubted)
            if listing != self.listing or doubted:
                self.listing = listing
                self._changed()

    async def _list(self, link: Link) -> Listing:
        return Listing(await link.list_tools(), link.has_resources)

    def _set(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._changed()


def _lost_call(repeatable: bool) -> ToolError:
    """The answer to a call whose connection is gone."""
    kind = TransientToolError if repeatable else ToolError
    return kind(
        "The connection to the server of this tool was lost during the call. It may have had its effect, or not."
    )


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks)


def _unreadable(error: ValueError) -> str:
    """What is wrong with an answer, of pydantic's long words the first that count."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    first = errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _in_words(error: BaseException) -> str:
    """An exception in words; of a group the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.error.message
    if isinstance(error, McpLostError):
        return str(error)
    # httpx ends its message with a link to an explanation of the status.
    text = str(error).partition("\nFor more information check: ")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
