"""The toolset `gymnasium`: a Gymnasium environment that the model talks with.

    {use: gymnasium, options: {id: FrozenLake-v1, kwargs: {render_mode: ansi}, render: true,
                               action: {choices: [left, down, right, up]}}}

Each episode has an environment of its own, in threads or in a process; the event loop never waits for one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from toolrl.errors import ConfigError, ToolError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.cancellation import uninterrupted
from toolrl.types import Task
from toolrl_plugin_openenv.actions import ActionReader
from toolrl_plugin_openenv.episode import EnvironmentEpisode, reset_arguments
from toolrl_plugin_openenv.gym_isolation import EnvError, Host, ProcessHost, ThreadHost
from toolrl_plugin_openenv.observations import make_show
from toolrl_plugin_openenv.options import GymnasiumOptions
from toolrl_plugin_openenv.sessions import QueuedSession, TextSession
from toolrl_plugin_openenv.wire import INVALID, Failure, Observed, read_observed

_log = logging.getLogger(__name__)


def build(options: GymnasiumOptions, context: BuildContext) -> GymnasiumToolset:
    """The toolset with these options; it makes nothing yet. Raises ConfigError where gymnasium is missing."""
    if options.id is not None and importlib.util.find_spec("gymnasium") is None:
        raise ConfigError(
            f"the environment {options.id!r} needs gymnasium, which isn't installed",
            where=context.where or None,
            hint="pip install 'toolrl-plugin-openenv[gymnasium]', or name a class by `target`.",
        )
    return GymnasiumToolset(options, context)


def check() -> str:
    """For `toolrl doctor`: which gymnasium there is."""
    if importlib.util.find_spec("gymnasium") is None:
        return "gymnasium isn't installed; environments named by `target` work"
    import gymnasium

    return f"gymnasium {gymnasium.__version__}"


class GymnasiumToolset:
    """See the module's docstring."""

    def __init__(self, options: GymnasiumOptions, context: BuildContext) -> None:
        self._options = options
        self._context = context
        self._show = make_show(options.observation, context.chat_format, options.max_observation_tokens)
        self._places = asyncio.Semaphore(options.max_sessions)
        self._idle: list[Host] = []
        self._reader: ActionReader | None = None

    def names(self) -> Sequence[str]:
        """There is nothing to call."""
        return ()

    async def start(self) -> None:
        """Make one environment, and see what actions it takes. Raises ToolsetError, ConfigError."""
        host = self._host()
        try:
            await host.do("make", self._options.environment, self._options.reset_timeout)
            described = await host.do("describe", {}, self._options.step_timeout)
        except (EnvError, ToolError) as error:
            raise ToolsetError(
                f"the environment can't be made: {error}", where=self._context.name, hint="Check id, target and kwargs."
            ) from error
        finally:
            await self._put_back(host)
        self._reader = self._action_reader(described)

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        """A session of one episode. Entering it raises ToolsetError and DataError."""
        return QueuedSession(self._open(episode))

    async def stop(self) -> None:
        """End the processes."""
        idle, self._idle, self._reader = self._idle, [], None
        await uninterrupted(asyncio.gather(*(host.end() for host in idle)))

    @asynccontextmanager
    async def _open(self, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        options, reader = self._options, self._reader
        if reader is None:
            raise ToolsetError("the toolset wasn't started")
        try:
            async with asyncio.timeout(options.queue_timeout):
                await self._places.acquire()
        except TimeoutError:
            raise ToolsetError(
                f"no environment came free within {options.queue_timeout:g} s (queue_timeout)",
                hint="Raise `max_sessions`, or lower rollout.concurrency.",
            ) from None
        try:
            arguments = reset_arguments(options, self._context.name, self._context.seed, episode)
            play = GymEpisode(options, arguments, self._host)
            try:
                yield TextSession(play, self._show, reader, options.action.invalid_reward)
            finally:
                if play.host is not None:
                    await uninterrupted(self._put_back(play.host))
        finally:
            self._places.release()

    def _host(self) -> Host:
        while self._idle:
            host = self._idle.pop()
            if host.usable:
                return host
        return ThreadHost() if self._options.isolation == "thread" else ProcessHost()

    async def _put_back(self, host: Host) -> None:
        if host.usable:
            try:
                await host.do("close", {}, self._options.step_timeout)
            except (EnvError, ToolsetError, ToolError) as error:
                _log.warning("an environment couldn't be closed: %s", error)
        if host.usable and self._reader is not None:
            self._idle.append(host)
        else:
            await host.end()

    def _action_reader(self, described: Mapping[str, Any]) -> ActionReader:
        action, count = self._options.action, described.get("count")
        if isinstance(action.choices, list) and count is not None and len(action.choices) != count:
            raise ConfigError(
                f"`action.choices` names {len(action.choices)} actions, and the environment has {count}",
                where=self._context.where or None,
                hint="Name them all in their order, or give an object of name and number.",
            )
        return ActionReader(action, described.get("kind"), first=int(described.get("first") or 0))


class GymEpisode(EnvironmentEpisode):
    """An episode in a Gymnasium environment."""

    def __init__(self, options: GymnasiumOptions, arguments: dict[str, Any], take: Callable[[], Host]) -> None:
        """`take` gives a host when the first one is needed."""
        super().__init__(options, arguments)
        self.host: Host | None = None
        self._take = take
        self._options = options

    async def _reset(self, arguments: dict[str, Any]) -> Observed:
        host, options = self._take(), self._options
        self.host = host
        reset = {"seed": arguments.pop("seed", None), "options": arguments}
        try:
            await host.do("make", options.environment, options.reset_timeout)
            return read_observed(await host.do("reset", reset, options.reset_timeout))
        except (EnvError, ToolError) as error:
            raise ToolsetError(f"the environment's reset failed: {error}") from error

    async def _step(self, action: Any) -> Observed | Failure:
        host = self.host
        assert host is not None
        try:
            return read_observed(await host.do("step", {"action": action}, self._options.step_timeout))
        except ToolError as error:
            return Failure(INVALID, error.message)
        except (EnvError, ValueError) as error:
            if not host.usable:
                raise ToolsetError(f"the environment is gone: {error}") from error
            return Failure("EXECUTION_ERROR", str(error))
