"""The thread that owns the work of an engine that computes in this process.

The event loop posts commands and gets results through futures; between two steps the thread runs what was posted. So
the engine never blocks the loop, tools run while tokens are sampled, and the engine needs no locks. A pause takes
effect between two steps: while one is held no weight is read, so a trainer may change them.

If the thread fails, everything that waits for it fails with an EngineError, and so does all that comes after.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from toolrl.errors import EngineError, ToolrlError

T = TypeVar("T")
_UNFINISHED = object()
"""The value of a command whose reply comes with a later step."""


def _reply() -> Future[Any]:
    """The result of a command or a request, which the thread sets and the event loop awaits."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # A cancelled caller stops waiting; the result is set all the same.
    return future


class EngineThread(ABC):
    """Subclasses implement how an engine is opened, stepped and closed. All methods without `async` but `send` run in
    the thread."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], Future[Any] | None]] = deque()
        self._replies: dict[Hashable, Future[Any]] = {}
        """Of requests under way."""
        self._pauses = 0
        self._stopping = False
        self._failure: ToolrlError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # The event loop's side.

    async def start(self) -> None:
        """Start the thread, and wait until its engine is open. Raises what opening it raised."""
        ready = self._post(lambda: None, _reply())
        self._thread.start()
        await asyncio.wrap_future(ready)

    async def call(self, command: Callable[[], T]) -> T:
        """Run something between two steps, and wait for it."""
        result: T = await asyncio.wrap_future(self._post(command, _reply()))
        return result

    def send(self, command: Callable[[], Any]) -> None:
        """Run something between two steps. Does nothing where the thread is gone."""
        with contextlib.suppress(EngineError):
            self._post(command)

    async def submit(self, request: Hashable, add: Callable[[], None]) -> Any:
        """Add a request to the engine and wait for its result. Cancelling it drops the request."""
        reply = _reply()
        self._post(lambda: self._begin(request, add, reply), reply)
        try:
            return await asyncio.wrap_future(reply)
        except asyncio.CancelledError:
            self.send(lambda: self._cancel(request))
            raise

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """While this is held no step is taken. Holds may be nested."""
        # Shielded: a pause that was asked for must be known to have happened before it is taken back.
        pause = asyncio.ensure_future(self.call(self.pause))
        try:
            await asyncio.shield(pause)
        except asyncio.CancelledError:
            pause.add_done_callback(lambda done: None if done.exception() else self.send(self.resume))
            raise
        try:
            yield
        finally:
            self.send(self.resume)

    async def stop(self) -> None:
        """End the thread after its step and close the engine. What is under way fails."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def _post(self, command: Callable[[], Any], reply: Future[Any] | None = None) -> Any:
        with self._wake:
            if self._failure is not None:
                hint = "Start the run again; the cause is the exception above this one."
                raise EngineError(f"the engine failed: {self._failure.message}", hint=hint) from self._failure
            if self._stopping:
                raise EngineError("the engine was stopped", hint="Build and start another one.")
            self._commands.append((command, reply))
            self._wake.notify()
        return reply

    # What subclasses implement.

    @abstractmethod
    def open(self) -> None:
        """Build the engine."""

    @abstractmethod
    def close(self) -> None:
        """Free what the engine holds; also after `open` failed."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is a step to take."""

    @abstractmethod
    def step(self) -> None:
        """Take a step, and `finish` the requests that end with it."""

    @abstractmethod
    def drop(self, request: Any) -> None:
        """Forget a request that was cancelled."""

    @abstractmethod
    def explain(self, error: BaseException) -> ToolrlError:
        """The error for everything that waits, of one that ended the thread."""

    def pause(self) -> None:
        """Take no step until `resume` is called as often as this."""
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1

    # The thread's side.

    def finish(self, request: Hashable, value: Any, error: BaseException | None = None) -> None:
        """Settle a request that is under way."""
        reply = self._replies.pop(request, None)
        if reply is not None and error is not None:
            reply.set_exception(error)
        elif reply is not None:
            reply.set_result(value)

    def _run(self) -> None:
        error: ToolrlError = EngineError("the engine was stopped while this was under way")
        try:
            self.open()
            while self._turn():
                pass
        except BaseException as failure:  # noqa: BLE001 - whatever it is, nothing may wait for this thread any more
            error = self.explain(failure)
            if error is not failure:
                error.__cause__ = failure
            with self._wake:
                self._failure = error
        try:
            self.close()
        finally:
            with self._wake:
                self._stopping = True
                waiting = [reply for _, reply in self._commands if reply is not None]
                self._commands.clear()
            for reply in (*waiting, *self._replies.values()):
                reply.set_exception(error)
            self._replies = {}

    def _turn(self) -> bool:
        """Run the commands, then one step. False when it is time to end."""
        with self._wake:
            while not (self._commands or self._stopping or self.has_work):
                self._wake.wait()
            if self._stopping:
                return False
            count = len(self._commands)
        for _ in range(count):
            self._run_command(*self._commands.popleft())
        if self.has_work:
            self.step()
        return True

    def _run_command(self, command: Callable[[], Any], reply: Future[Any] | None) -> None:
        try:
            value = command()
        except Exception as error:
            if reply is None:
                raise
            reply.set_exception(error)
        else:
            if reply is not None and value is not _UNFINISHED:
                reply.set_result(value)

    def _begin(self, request: Hashable, add: Callable[[], None], reply: Future[Any]) -> object:
        add()
        self._replies[request] = reply
        return _UNFINISHED

    def _cancel(self, request: Hashable) -> None:
        if self._replies.pop(request, None) is not None:
            self.drop(request)
