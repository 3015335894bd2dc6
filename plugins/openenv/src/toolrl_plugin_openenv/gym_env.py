"""A Gymnasium environment as data, in threads: resets and steps whose answers JSON can hold.

Any object with `reset` and `step` will do. What they return is read as Gymnasium has it, `(observation, info)` and
`(observation, reward, terminated, truncated, info)`.

A host has one environment at a time. A step that takes too long spoils its host: the thread is left to itself, and
closes the environment when it comes back.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

from toolrl.errors import ToolError, ToolsetError, ToolUnavailableError
from toolrl.tools.cancellation import Watch
from toolrl.tools.threads import Job, Lane

_log = logging.getLogger(__name__)


class GymEnv:
    """At most one environment. Its methods block, and raise what the environment raises."""

    def __init__(self) -> None:
        self._env: Any = None
        self._render = False

    def make(self, name: str | None, target: str | None, kwargs: Mapping[str, Any], render: bool) -> dict[str, Any]:
        """An environment by its id at Gymnasium, or by its class; the one before it is closed."""
        self.close()
        self._render = render
        if target is not None:
            module, _, attribute = target.partition(":")
            made: Any = operator.attrgetter(attribute)(importlib.import_module(module))
            self._env = made(**kwargs)
        else:
            import gymnasium

            assert name is not None
            self._env = gymnasium.make(name, **kwargs)
        return {}

    def describe(self) -> dict[str, Any]:
        """The kind of its action, as a JSON Schema type, and for numbered ones the first and how many there are."""
        space: Any = getattr(self._env, "action_space", None)
        if isinstance(getattr(space, "n", None), SupportsIndex):
            return {"kind": "integer", "first": int(getattr(space, "start", 0)), "count": int(space.n)}
        names = {"Text": "string", "Dict": "object", "Tuple": "array", "MultiDiscrete": "array", "Box": "array"}
        return {"kind": names.get(type(space).__name__, "string"), "first": 0, "count": None}

    def reset(self, seed: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """The first observation."""
        observation, _ = self._env.reset(seed=seed, options=dict(options) or None)
        return {"observation": self._shown(observation), "reward": None, "done": False}

    def step(self, action: Any) -> dict[str, Any]:
        """Make a step. Raises ToolError for what is no action."""
        space: Any = getattr(self._env, "action_space", None)
        action = _as_array(action, space)
        if hasattr(space, "contains") and not space.contains(action):
            raise ToolError(f"{action!r} isn't in {space}")
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return {"observation": self._shown(observation), "reward": float(reward), "done": bool(terminated or truncated)}

    def close(self) -> dict[str, Any]:
        """Let go of the environment, if there is one."""
        env, self._env = self._env, None
        if hasattr(env, "close"):
            env.close()
        return {}

    def _shown(self, observation: Any) -> Any:
        if self._render:
            drawn = self._env.render()
            observation = drawn.getvalue() if hasattr(drawn, "getvalue") else drawn
        return json.loads(json.dumps(observation, default=_plain, skipkeys=True))


def _as_array(action: Any, space: Any) -> Any:
    if isinstance(action, list) and hasattr(space, "dtype") and hasattr(space, "shape"):
        import numpy

        try:
            return numpy.asarray(action, dtype=space.dtype)
        except (TypeError, ValueError) as error:
            raise ToolError(str(error)) from error
    return action


def _plain(value: Any) -> Any:
    """What JSON can't hold: arrays and their scalars as lists and numbers, all else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


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
                raise ToolsetError(f"the environment gave no answer to {what} within {seconds:g} s") from None
            if not watch.failed(error):
                self._leave(job)
                raise
            raise EnvError(f"{type(error).__name__}: {error}") from error

    def _leave(self, job: Job[Any]) -> None:
        """A thread can't be stopped. Where it comes back, its environment is closed."""
        self.usable = False
        job.abandon()
        job.when_ended(lambda: self._lane.submit(self._env.close).add_done_callback(_report_failure))


def _report_failure(job: Job[Any]) -> None:
    if not job.cancelled() and (error := job.exception()) is not None:
        _log.warning("an environment couldn't be closed: %s", error)
