"""Where a Gymnasium environment runs: in threads of this process, or in a worker process of its own.

A host has one environment at a time. A step that takes too long spoils its host: a process is killed, a thread is left
to itself, and closes its environment when it comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from toolrl.errors import ToolError, ToolsetError, ToolUnavailableError
from toolrl.tools.cancellation import Watch, uninterrupted
from toolrl.tools.subprocess_pool import ProcessCrashError, WorkerProcess, ask
from toolrl.tools.threads import POOL, Job, Lane
from toolrl_plugin_openenv.gym_env import TARGET, GymEnv

CLOSE_SECONDS = 20.0
_log = logging.getLogger(__name__)


class EnvError(Exception):
    """The environment raised, or took its process with it; the text says what."""


class Host(Protocol):
    """One environment at a time."""

    @property
    def usable(self) -> bool:
        """False after it was spoiled."""
        ...

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """make, describe, reset, step or close. Raises ToolError for what is no action, EnvError for what the
        environment raises, ToolsetError where it takes too long."""
        ...

    async def end(self) -> None:
        """Let go of everything."""
        ...


class ProcessHost:
    """A worker process."""

    def __init__(self) -> None:
        self._worker = WorkerProcess()

    @property
    def usable(self) -> bool:
        return self._worker.usable

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        given = {"what": what, "arguments": dict(arguments)}
        try:
            async with asyncio.timeout(seconds):
                reply = await ask(self._worker, {"target": TARGET, "arguments": given})  # Cancelling it kills.
        except TimeoutError:
            raise ToolsetError(f"the environment gave no answer to {what} within {seconds:g} s") from None
        except ProcessCrashError as error:
            raise EnvError(str(error)) from error
        if "tool_error" in reply:
            raise ToolError(str(reply["tool_error"]["message"]))
        if "crash" in reply:
            raise EnvError(str(reply["crash"]["message"]))
        answer: dict[str, Any] = json.loads(reply["result"]["text"])
        return answer

    async def end(self) -> None:
        await uninterrupted(POOL.submit(self._worker.kill))


class ThreadHost:
    """An environment in this process. Its methods run in threads, one at a time."""

    def __init__(self, lane: Lane) -> None:
        """`lane` counts the threads that don't come back."""
        self._lane = lane
        self._env: GymEnv | None = None
        self._stuck: Job[Any] | None = None

    @property
    def usable(self) -> bool:
        return self._stuck is None

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        work = self._work(what, arguments)
        try:
            # Where too many environments hang no more are begun; what is there can always be closed.
            job = (self._lane.submit if what == "close" else self._lane.call)(work)
        except ToolUnavailableError as error:
            raise ToolsetError(error.message) from error
        watch = Watch()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(job)
        except TimeoutError as error:
            if job.done():  # The environment's own.
                raise EnvError(f"TimeoutError: {error}") from error
            self._leave(job)
            raise ToolsetError(f"the environment gave no answer to {what} within {seconds:g} s") from None
        except ToolError:
            raise
        except BaseException as error:
            if not watch.failed(error):
                self._leave(job)
                raise
            raise EnvError(f"{type(error).__name__}: {error}") from error

    async def end(self) -> None:
        if self._stuck is None and self._env is not None:
            with suppress(ToolsetError, EnvError):
                await uninterrupted(self.do("close", {}, CLOSE_SECONDS))

    def _work(self, what: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        def make() -> dict[str, Any]:
            self._env = GymEnv(arguments)
            return {}

        def close() -> dict[str, Any]:
            env, self._env = self._env, None
            if env is not None:
                env.close()
            return {}

        def other() -> Any:
            assert self._env is not None
            return getattr(self._env, what)(**arguments)

        return {"make": make, "close": close}.get(what, other)

    def _leave(self, job: Job[Any]) -> None:
        """A thread can't be stopped. Where it comes back, its environment is closed."""
        self._stuck = job
        job.abandon()
        job.when_ended(self._close_late)

    def _close_late(self) -> None:
        closing = self._lane.submit(self._work("close", {}))
        closing.add_done_callback(_looked_at)


def _looked_at(job: Job[Any]) -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        _log.warning("an environment couldn't be closed: %s", error)
