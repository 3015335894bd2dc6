"""One episode in an environment: a reset, then steps, one at a time.

An environment that is lost takes the episode with it: it fails when its reward is asked for, so that no model learns
from a server that went away.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from toolrl.errors import DataError, ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.types import Task
from toolrl_plugin_openenv.connection import OpenEnvConnection
from toolrl_plugin_openenv.observations import at_path
from toolrl_plugin_openenv.options import EpisodeOptions, OpenEnvOptions
from toolrl_plugin_openenv.wire import (
    FATAL,
    INVALID,
    PROTOCOL,
    Failure,
    Observed,
    reset_message,
    step_message,
)


class NotMadeError(Exception):
    """A step that wasn't made, as the episode is over. The message is for the model."""


class EnvironmentEpisode(ABC):
    """See the module's docstring. Steps of one turn may be asked for at once: they are made in that order."""

    def __init__(self, options: EpisodeOptions, arguments: dict[str, Any]) -> None:
        """`arguments` are those of the reset."""
        self.done = False
        self._final = options.reward == "final"
        self._arguments = arguments
        self._lock = asyncio.Lock()
        self._first: Observed | None = None
        self._broken: ToolsetError | None = None
        self._last_reward: float | None = None

    @abstractmethod
    async def _reset(self, arguments: dict[str, Any]) -> Observed:
        """Reset the environment. Raises ToolsetError."""

    @abstractmethod
    async def _step(self, action: Any) -> Observed | Failure:
        """Make a step. Raises ToolsetError where the episode is lost; TypeError, ValueError where JSON can't hold the
        action."""

    async def begin(self) -> Observed:
        """Reset, the first time. Raises ToolsetError."""
        async with self._lock:
            return await self._begin()

    async def step(self, action: Any) -> Observed | Failure:
        """Make a step. Raises NotMadeError, ToolsetError; TypeError, ValueError where JSON can't hold it."""
        async with self._lock:
            await self._begin()
            if self.done:
                raise NotMadeError("The episode is over. This didn't run.")
            try:
                answer = await self._step(action)
            except ToolsetError as error:
                self._broken = error
                raise
            except asyncio.CancelledError:
                self._broken = ToolsetError("a step of the environment was given up")
                raise
            if isinstance(answer, Failure):
                self.done = self.done or answer.over
                return answer
            self.done = answer.done
            if answer.reward is not None:
                self._last_reward = answer.reward
            return Observed(answer.observation, None if self._final else answer.reward, self.done)

    async def reward(self) -> float | None:
        """What no step was credited. Raises ToolsetError where the episode broke."""
        if self._broken is not None:
            raise self._broken
        if self._final:
            return self._last_reward
        return (self._first.reward or None) if self._first is not None else None  # A reset belongs to no turn.

    async def _begin(self) -> Observed:
        if self._broken is not None:
            raise self._broken
        if self._first is None:
            try:
                self._first = await self._reset(self._arguments)
            except ToolsetError as error:
                self._broken = error
                raise
            self._last_reward, self.done = self._first.reward, self._first.done
        return self._first


class OpenEnvEpisode(EnvironmentEpisode):
    """An episode in a session of a server."""

    def __init__(self, options: OpenEnvOptions, arguments: dict[str, Any], connection: OpenEnvConnection) -> None:
        super().__init__(options, arguments)
        self._options = options
        self._connection = connection

    async def _reset(self, arguments: dict[str, Any]) -> Observed:
        try:
            message = reset_message(arguments)
        except (TypeError, ValueError) as error:
            raise ToolsetError(f"JSON can't hold the arguments of the reset: {error}") from error
        answer = await self._asked(message, self._options.reset_timeout)
        if isinstance(answer, Failure):
            raise ToolsetError(f"the reset failed: {answer.message}")
        return answer

    async def _step(self, action: Mapping[str, Any]) -> Observed | Failure:
        return await self._asked(step_message(action), self._options.step_timeout)

    async def _asked(self, message: str, seconds: float) -> Observed | Failure:
        answer = await self._connection.request(message, seconds)
        if isinstance(answer, Failure) and answer.is_refusal:
            # No episode fails for what a model says: it is over as played.
            return Failure(INVALID, "the environment doesn't allow these values", over=True)
        if isinstance(answer, Failure) and answer.code in FATAL:
            said = "the session is unusable" if answer.code == PROTOCOL else "the server ended the session"
            raise ToolsetError(f"{said}: {answer.message[:500]} ({answer.code})")
        return answer


def reset_arguments(options: EpisodeOptions, name: str, run_seed: int, episode: EpisodeContext) -> dict[str, Any]:
    """The arguments of a reset. The later ones win: seed, `reset`, `reset_fields`, the task's `create_kwargs` under the
    toolset's `name`. Raises DataError where the task lacks a field."""
    task = episode.task
    name_of_seed = f"{run_seed}/{task.id}".encode(errors="surrogatepass")
    seed = int.from_bytes(hashlib.blake2b(name_of_seed, digest_size=4).digest(), "big") >> 1
    arguments: dict[str, Any] = {"seed": seed, **options.reset}
    for argument, path in options.reset_fields.items():
        arguments[argument] = _of_task(task, path)
    for key in (name, name.rpartition("/")[2]):
        given = (task.tools_kwargs.get(key) or {}).get("create_kwargs")
        if given:
            arguments.update(given)
            break
    return arguments


def _of_task(task: Task, path: str) -> Any:
    value = at_path({**task.extra, "extra": task.extra, "id": task.id, "answer": task.answer}, path)
    if value is None:
        raise DataError(
            f"task {task.id!r} has no value at {path!r}, which reset_fields asks for; its extra has: "
            f"{', '.join(map(str, task.extra)) or 'nothing'}",
            hint="Name another column, or leave it out of `reset_fields`.",
        )
    return value
