"""A thread with an event loop of its own, where verl's tools run.

verl's tools are coroutines, and many of them block: `requests.post` in an `async def` is common. On the run's own loop
each such call would hold up every episode. Here it holds up the toolset's other calls and nothing else, and what the
tools keep (sessions, locks, dicts of instances) is still only ever used from one thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

STOP_SECONDS = 10.0
"""How long stopping waits for what runs; a function that blocks can't be interrupted."""
_log = logging.getLogger(__name__)


class LoopThread:
    """Start it, `call` functions in it from one other event loop, stop it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Does nothing where it runs."""
        if self._thread is None:
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._loop = runner.get_loop()
            self._thread = threading.Thread(target=_run, args=(runner,), name=self._name, daemon=True)
            self._thread.start()

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What a function or a coroutine function gives there. Cancelling the caller cancels the coroutine."""
        if self._loop is None:
            raise RuntimeError(f"{self._name} doesn't run: start() comes first")
        future = asyncio.run_coroutine_threadsafe(_called(function, args, kwargs), self._loop)
        return await asyncio.wrap_future(future)

    async def stop(self) -> None:
        """Cancel what runs, and end. Does nothing where it doesn't run."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        ended = asyncio.get_running_loop().run_in_executor(None, thread.join, STOP_SECONDS)
        await asyncio.shield(ended)
        if thread.is_alive():
            _log.warning("%s: a tool still blocks after %g s; its thread is left behind", self._name, STOP_SECONDS)


def _run(runner: asyncio.Runner) -> None:
    with runner:  # What still runs at its end is cancelled.
        runner.get_loop().run_forever()


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        # The first two would end the thread, with every other call in it.
        raise RuntimeError(f"the tool raised {type(error).__name__}: {error}") from error
