"""The thread that owns all of the engine's torch work.

The event loop posts commands and gets results through futures; between two steps of the batch the thread runs what
was posted. So torch never blocks the loop, tools go on while tokens are sampled, and the batch needs no locks. A
pause takes effect between two steps: while one is held no tensor of the model is read, so a trainer may change
them.

If the thread fails, everything that waits for it fails with an EngineError, and so does all that comes after.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from toolrl.errors import EngineError
from toolrl.types import Generation
from toolrl_plugin_transformers.batch import Batch
from toolrl_plugin_transformers.request import Request

T = TypeVar("T")
_R = TypeVar("_R", "_Reply", None)
_Outcome = tuple["_Reply", Any, BaseException | None]
_SMALLER = "Lower the engine's options cache_tokens, max_batch or prefill_tokens, then go on with --resume."
_RESTART = "Build the engine again; the cause is the exception above this one."


class _Reply:
    """A future of some event loop, to be settled from another thread."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Must run in the loop's thread."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class Worker:
    """A thread around a `Batch`. The methods below `run` are the thread's, the others are the event loop's."""

    def __init__(self, make_batch: Callable[[], Batch]) -> None:
        self._make_batch = make_batch
        self._wake = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], _Reply | None]] = deque()
        self._replies: dict[Request, _Reply] = {}
        self._pauses = 0
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self.run, name="toolrl-transformers-engine", daemon=True)
        self.batch: Batch

    # The event loop's side.

    async def start(self) -> None:
        """Start the thread, and wait until it has built its batch. Raises what that raised."""
        ready = self._post(lambda: None, _Reply())
        self._thread.start()
        await ready.future

    async def call(self, command: Callable[[], T]) -> T:
        """Run something between two steps, and wait for it."""
        result: T = await self._post(command, _Reply()).future
        return result

    def send(self, command: Callable[[], Any]) -> None:
        """Run something between two steps. Does nothing where the thread is gone."""
        with contextlib.suppress(EngineError):
            self._post(command, None)

    async def generate(self, request: Request) -> Generation:
        """Sample for a request. Cancelling gives its place back."""
        reply = _Reply()
        self._post(lambda: self._add(request, reply), reply)
        try:
            generation: Generation = await reply.future
        except asyncio.CancelledError:
            self.send(lambda: self._cancel(request))
            raise
        return generation

    async def stop(self) -> None:
        """End the thread after its step; what still waits for it gets an EngineError."""
        if self._thread.ident is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _post(self, command: Callable[[], Any], reply: _R) -> _R:
        """Hand a command to the thread, which may have run it before this returns."""
        with self._wake:
            if self._failure is not None:
                raise EngineError("the engine has failed earlier", hint=_RESTART) from self._failure
            if self._stopping:
                raise EngineError("the engine is stopped", hint="Call start() on a new engine first.")
            self._commands.append((command, reply))
            self._wake.notify()
        return reply

    # The thread's side.

    def run(self) -> None:
        """The thread's life."""
        try:
            # Not inference mode: a model may keep a tensor that it makes, and training couldn't use it afterwards.
            with torch.no_grad():
                self.batch = self._make_batch()
                while self._turn():
                    pass
            self._fail_all(EngineError("the engine was stopped while this was in flight"))
        except BaseException as error:  # noqa: BLE001  # whatever it is, nobody may wait for this thread any more
            with self._wake:
                self._failure = error
            self._fail_all(error)

    def _turn(self) -> bool:
        """Run the commands, then one step. False when it is time to end."""
        with self._wake:
            while not self._commands and not self._stopping and (self._pauses or self.batch.idle):
                self._wake.wait()
            if self._stopping:
                self.batch.leave()
                return False
            commands, self._commands = self._commands, deque()
        for command, reply in commands:
            self._run_command(command, reply)
        if not self._pauses and not self.batch.idle:
            self._step()
        return True

    def _step(self) -> None:
        batch = self.batch
        batch.enter()
        done = batch.step()
        if batch.idle:
            batch.leave()  # before anyone hears of the results and trains
        outcomes: list[_Outcome] = []
        for request in done:
            reply = self._replies.pop(request)
            outcomes.append((reply, None if request.error else request.result(), request.error))
        _deliver(outcomes)

    def _run_command(self, command: Callable[[], Any], reply: _Reply | None) -> None:
        try:
            value = command()
        except Exception as error:
            if reply is None:
                raise
            _deliver([(reply, None, error)])
        else:
            if reply is not None and value is not _LATER:
                _deliver([(reply, value, None)])

    def _add(self, request: Request, reply: _Reply) -> object:
        self.batch.add(request)
        self._replies[request] = reply
        return _LATER

    def _cancel(self, request: Request) -> None:
        if self._replies.pop(request, None) is not None:
            self.batch.cancel(request)

    def close(self, session: str) -> None:
        """Forget a session. A request that it still has fails."""
        request = self.batch.close(session)
        reply = self._replies.pop(request, None) if request is not None else None
        if reply is not None:
            _deliver([(reply, None, EngineError(f"session {session!r} was closed while it was generating"))])

    def pause(self) -> None:
        """Take no step until `resume` is called as often as this."""
        self._pauses += 1
        self.batch.leave()

    def resume(self) -> None:
        self._pauses -= 1

    def _fail_all(self, error: BaseException) -> None:
        with self._wake:
            replies = [reply for _, reply in self._commands if reply is not None]
            self._commands.clear()
        replies += self._replies.values()
        self._replies = {}
        if not isinstance(error, EngineError):
            hint = _SMALLER if isinstance(error, torch.OutOfMemoryError) else None
            cause, error = error, EngineError(f"the engine's thread failed: {type(error).__name__}: {error}", hint=hint)
            error.__cause__ = cause
        _deliver([(reply, None, error) for reply in replies])


_LATER = object()
"""What a command gives whose reply comes with a later step."""


def _deliver(outcomes: list[_Outcome]) -> None:
    """Settle futures in their loops, with one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            if not loop.is_closed():
                raise
            # A closed loop has nobody left who waits.


def _settle(outcomes: list[_Outcome]) -> None:
    for reply, value, error in outcomes:
        reply.settle(value, error)
