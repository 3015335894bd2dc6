"""Where a Gymnasium environment runs: in threads of this process.

A host has one environment at a time. A step that takes too long spoils its host: the thread is left to itself, and
closes the environment when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from toolrl.errors import ToolError, ToolsetError, ToolUnavailableError
from toolrl.tools.cancellation import Watch
from toolrl.tools.threads import Job, Lane
from toolrl_plugin_openenv.gym_env import GymEnv

_log = logging.getLogger(__name__)


class EnvError(Exception):
    """The environment raised; the text says what."""


class ThreadHost:
    """An environment in this process. Its methods run in threads, one at a time."""

    def __init__(self, lane: Lane) -> None:
        """`lane` counts the threads that don't come back."""
        self._lane = lane
        self._env = GymEnv()
        self.usable = True

    async def do(self, what: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Call this method of a GymEnv. Raises ToolError for what is no action, EnvError for what the environment
        raises, ToolsetError where it takes too long."""
        try:
            # Where too many environments hang no more are begun; what is there can always be closed.
            run = self._lane.submit if what == "close" else self._lane.call
            job: Job[dict[str, Any]] = run(getattr(self._env, what), **arguments)
        except ToolUnavailableError as error:
            raise ToolsetError(error.message) from error
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

    def _leave(self, job: Job[Any]) -> None:
        """A thread can't be stopped. Where it comes back, its environment is closed."""
        self.usable = False
        job.abandon()
        job.when_ended(lambda: self._lane.submit(self._env.close).add_done_callback(_report_failure))


def _too_late(what: str, seconds: float) -> ToolsetError:
    return ToolsetError(f"the environment gave no answer to {what} within {seconds:g} s")


def _report_failure(job: Job[Any]) -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        _log.warning("an environment couldn't be closed: %s", error)
