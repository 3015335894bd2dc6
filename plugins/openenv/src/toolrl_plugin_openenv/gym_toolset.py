"""The toolset `gymnasium`: a Gymnasium environment that the model talks with.

    {use: gymnasium, options: {id: FrozenLake-v1, kwargs: {render_mode: ansi}, render: true,
                               action: {choices: [left, down, right, up]}}}

Each episode has an environment of its own, in threads or in a process; the event loop never waits for one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from toolrl.errors import ConfigError, ToolError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.cancellation import uninterrupted
from toolrl.tools.threads import POOL, Lane
from toolrl.types import Task
from toolrl_plugin_openenv.actions import ActionError, ActionReader
from toolrl_plugin_openenv.arguments import reset_arguments
from toolrl_plugin_openenv.episode import Rewards
from toolrl_plugin_openenv.gym_isolation import EnvError, Host, ProcessHost, ThreadHost
from toolrl_plugin_openenv.observations import Show, make_show
from toolrl_plugin_openenv.options import GymnasiumOptions
from toolrl_plugin_openenv.queued_session import QueuedSession
from toolrl_plugin_openenv.text_session import StepRefusedError, TextSession
from toolrl_plugin_openenv.wire import LARGEST, Observed

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
        self._lane = Lane(context.name, POOL)
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
        session: GymSession | None = None
        try:
            arguments = reset_arguments(options, self._context.name, self._context.seed, episode)
            session = GymSession(self._host, arguments, options, reader, self._show)
            yield session
        finally:
            try:
                if session is not None and session.host is not None:
                    await uninterrupted(self._put_back(session.host))
            finally:
                self._places.release()

    def _host(self) -> Host:
        while self._idle:
            host = self._idle.pop()
            if host.usable:
                return host
        return ThreadHost(self._lane) if self._options.isolation == "thread" else ProcessHost()

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


class GymSession(TextSession):
    """A talk with a Gymnasium environment."""

    def __init__(
        self,
        take: Callable[[], Host],
        arguments: dict[str, Any],
        options: GymnasiumOptions,
        reader: ActionReader,
        show: Show,
    ) -> None:
        """`take` gives a host when the first one is needed; `arguments` are those of the reset."""
        super().__init__(reader, show, options.action.invalid_reward)
        self.host: Host | None = None
        self._take = take
        self._arguments = arguments
        self._options = options
        self._rewards = Rewards(options.reward == "final")
        self._first: Observed | None = None
        self._broken: ToolsetError | None = None

    async def begin(self) -> Observed:
        if self._first is None:
            self.host = self._take()
            seed = self._arguments.pop("seed", None)
            reset = {"seed": seed, "options": self._arguments}
            try:
                await self.host.do("make", self._options.environment, self._options.reset_timeout)
                self._first = _observed(await self.host.do("reset", reset, self._options.reset_timeout))
            except (EnvError, ToolError) as error:
                raise self._break(f"the environment's reset failed: {error}") from error
            except ToolsetError as error:
                raise self._break(error.message) from error
        return self._first

    async def act(self, action: Any) -> Observed:
        await self.begin()
        assert self.host is not None
        try:
            observed = _observed(await self.host.do("step", {"action": action}, self._options.step_timeout))
        except ToolError as error:
            raise ActionError(error.message) from error
        except EnvError as error:
            if not self.host.usable:
                raise self._break(f"the environment is gone: {error}") from error
            raise StepRefusedError(f"The environment couldn't do that: {error}") from error
        except ToolsetError as error:
            raise self._break(error.message) from error
        return Observed(observed.observation, self._rewards.of_step(observed.reward), observed.done)

    async def reward(self) -> float | None:
        if self._broken is not None:
            raise self._broken
        return self._rewards.rest()

    def _break(self, message: str) -> ToolsetError:
        self._broken = ToolsetError(message)
        return self._broken


def _observed(answer: Mapping[str, Any]) -> Observed:
    """Raises EnvError for a reward that is no number an episode can count."""
    reward = answer.get("reward")
    if reward is not None and not (math.isfinite(reward) and abs(reward) <= LARGEST):
        raise EnvError(f"its reward is {reward}, expected a finite number")
    return Observed(answer["observation"], reward, bool(answer.get("done")))
