"""The thread that steps vLLM's engine.

The event loop posts commands and gets results through futures; between two steps the thread runs what was posted. So
vLLM never blocks the loop, and nothing is done to its engine while it computes: requests are added and aborted, weights
are replaced and the probe is read between two steps.

If a step fails, everything that waits fails with an EngineError, and so does all that comes after.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from toolrl.errors import EngineError, ToolrlError
from toolrl_plugin_vllm.build import add, explain

T = TypeVar("T")
_RESTART = "Start the run again; the cause is the exception above this one."


class _Reply:
    """A future of some event loop, to be settled from another thread."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """From any thread."""
        try:
            self.loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            # A closed loop has nobody left who waits.

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class Driver:
    """A thread around vLLM's `LLMEngine`. The methods below `_run` are the thread's, the others the event loop's."""

    def __init__(self, build: Callable[[], Any], take_down: Callable[[Any], None]) -> None:
        self._build, self._take_down = build, take_down
        self._wake = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], _Reply | None]] = deque()
        self._waiting: dict[str, _Reply] = {}
        """Requests under way, by the id that vLLM knows them by."""
        self._urgent: set[str] = set()
        self._numbers = itertools.count()
        self._pauses = 0
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="toolrl-vllm-engine", daemon=True)
        self.engine: Any = None

    # The event loop's side.

    async def start(self) -> None:
        """Start the thread, and wait until vLLM is there. Raises what building it raised."""
        ready = self._post(lambda: None, _Reply())
        self._thread.start()
        # A start that is cancelled must not leave a thread behind that still builds.
        await asyncio.shield(ready.future)

    async def call(self, command: Callable[[], T]) -> T:
        """Run something between two steps, and wait for it."""
        result: T = await self._post(command, _Reply()).future
        return result

    def send(self, command: Callable[[], Any]) -> None:
        """Run something between two steps. Does nothing where the thread is gone."""
        with self._wake:
            if self._failure is None and not self._stopping:
                self._commands.append((command, None))
                self._wake.notify()

    async def request(self, prompt: list[int], params: Any, *, adapter: Any = None, urgent: bool = False) -> Any:
        """A finished `RequestOutput`. `params` makes the `SamplingParams`, in the thread; `adapter` is a `LoRARequest`.
        Cancelling it aborts it. For an urgent one steps are taken in a pause, too, for all that is under way."""
        name, reply = str(next(self._numbers)), _Reply()
        self._post(lambda: self._add(name, prompt, params, adapter, reply, urgent=urgent), None)
        try:
            return await reply.future
        except asyncio.CancelledError:
            self.send(lambda: self._abort(name))
            raise

    async def stop(self) -> None:
        """End the thread and free what vLLM holds. What is under way fails."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 0.1)

    def _post(self, command: Callable[[], Any], reply: _Reply | None) -> Any:
        with self._wake:
            if self._failure is not None:
                said = self._failure.message if isinstance(self._failure, ToolrlError) else self._failure
                raise EngineError(f"the engine failed: {said}", hint=_RESTART) from self._failure
            if self._stopping:
                raise EngineError("the engine was stopped", hint="Build and start another one.")
            self._commands.append((command, reply))
            self._wake.notify()
        return reply

    # The thread's side.

    def _run(self) -> None:
        error: BaseException = EngineError("the engine was stopped while this was under way")
        try:
            self.engine = self._build()
            while self._turn():
                pass
        except BaseException as failure:  # noqa: BLE001 - whatever it is, nobody may wait for this thread any more
            error = failure if self.engine is None else explain(self.engine, failure)
            with self._wake:
                self._failure = error
        try:
            if self.engine is not None:
                self._take_down(self.engine)
        finally:
            self.engine = None
            self._fail_all(error)

    def _turn(self) -> bool:
        """Run the commands, then one step. False when it is time to end."""
        with self._wake:
            while not (self._commands or self._stopping or self._has_work):
                self._wake.wait()
            if self._stopping:
                return False
            commands, self._commands = self._commands, deque()
        for command, reply in commands:
            self._run_command(command, reply)
        if self._has_work:
            self._step()
        return True

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting) and (not self._pauses or bool(self._urgent))

    def _step(self) -> None:
        for output in self.engine.step():
            reply = self._waiting.pop(output.request_id, None) if output.finished else None
            if reply is not None:
                self._urgent.discard(output.request_id)
                reply.settle(output)

    def _run_command(self, command: Callable[[], Any], reply: _Reply | None) -> None:
        try:
            value = command()
        except Exception as error:
            if reply is None:
                raise
            reply.settle(None, error)
        else:
            if reply is not None:
                reply.settle(value)

    def _add(self, name: str, prompt: list[int], params: Any, adapter: Any, reply: _Reply, *, urgent: bool) -> None:
        if reply.future.cancelled():
            return
        try:
            add(self.engine, name, prompt, params(), adapter)
        except Exception as error:  # noqa: BLE001 - vLLM refuses what it can't serve in many ways
            refused = EngineError(f"vLLM refuses a request: {error}")
            refused.__cause__ = error
            reply.settle(None, refused)
        else:
            self._waiting[name] = reply
            if urgent:
                self._urgent.add(name)

    def _abort(self, name: str) -> None:
        self._urgent.discard(name)
        if self._waiting.pop(name, None) is not None:
            self.engine.abort_request([name])

    def pause(self) -> None:
        """Take no step until `resume` is called as often as this."""
        self._pauses += 1

    def resume(self) -> None:
        """Take back one pause."""
        self._pauses -= 1

    def _fail_all(self, error: BaseException) -> None:
        with self._wake:
            replies = [reply for _, reply in self._commands if reply is not None]
            self._commands.clear()
            self._stopping = True
        replies += self._waiting.values()
        self._waiting = {}
        if not isinstance(error, ToolrlError):
            cause, error = error, EngineError(f"vLLM failed: {type(error).__name__}: {error}", hint=_hint(str(error)))
            error.__cause__ = cause
        for reply in replies:
            reply.settle(None, error)


def _hint(said: str) -> str | None:
    """What vLLM calls by the names of its own arguments."""
    if "memory" not in said.lower():
        return None
    return "What vLLM takes is set by cache_gib, memory_fraction, max_length and max_batch in engine.options."
