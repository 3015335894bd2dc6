"""Where a Gymnasium environment runs: in threads of this process, or in a worker process of its own.

A host has one environment at a time. A step that takes too long spoils its host: a process is killed, a thread is left
to itself, and closes its environment when it comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from toolrl.errors import ToolError, ToolsetError
from toolrl.tools.cancellation import Watch, uninterrupted
from toolrl.tools.subprocess_pool import ProcessCrashError, WorkerProcess, ask
from toolrl.tools.threads import POOL, Job
from toolrl_plugin_openenv.gym_env import TARGET, GymEnv

_log = logging.getLogger(__name__)


class EnvError(Exception):
    """The environment raised, or took its process with it; the text says what."""


class ProcessHost:
    """A worker process, with one environment at a time."""

    def __init__(self) -> None:
        self._worker = WorkerProcess()

    @property
    def usable(self) -> bool:
        """False after it was spoiled."""
        return self._worker.usable

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Call this method of a GymEnv. Raises ToolError for what is no action, EnvError for what the environment
        raises, ToolsetError where it takes too long."""
        given = {"what": what, "arguments": dict(arguments)}
        try:
            async with asyncio.timeout(seconds):
                reply = await ask(self._worker, {"target": TARGET, "arguments": given})  # Cancelling it kills.
        except TimeoutError:
            raise _too_late(what, seconds) from None
        except ProcessCrashError as error:
            raise EnvError(str(error)) from error
        if "tool_error" in reply:
            raise ToolError(str(reply["tool_error"]["message"]))
        if "crash" in reply:
            raise EnvError(str(reply["crash"]["message"]))
        answer: dict[str, Any] = json.loads(reply["result"]["text"])
        return answer

    async def end(self) -> None:
        """End the process."""
        await uninterrupted(POOL.submit(self._worker.kill))


class ThreadHost:
    """An environment in this process. Its methods run in threads, one at a time."""

    def __init__(self) -> None:
        self._env = GymEnv()
        self.usable = True

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """As ProcessHost's."""
        job: Job[dict[str, Any]] = POOL.submit(getattr(self._env, what), **arguments)
        watch = Watch()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(job)
        except ToolError:
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and not job.done():
                self._leave(job)
                raise _too_late(what, seconds) from None
            if not watch.failed(error):
                self._leave(job)
                raise
            raise EnvError(f"{type(error).__name__}: {error}") from error

    async def end(self) -> None:
        """Its environment is closed already."""

    def _leave(self, job: Job[Any]) -> None:
        """A thread can't be stopped. Where it comes back, its environment is closed."""
        self.usable = False
        job.abandon()
        job.when_ended(lambda: POOL.submit(self._env.close).add_done_callback(_report_failure))


Host = ProcessHost | ThreadHost


def _too_late(what: str, seconds: float) -> ToolsetError:
    return ToolsetError(f"the environment gave no answer to {what} within {seconds:g} s")


def _report_failure(job: Job[Any]) -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        _log.warning("an environment couldn't be closed: %s", error)
