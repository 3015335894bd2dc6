"""What the rollout gets of an episode: tools that the model calls, or a talk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ToolError, ToolsetError
from toolrl.protocols import Reply, ToolSession
from toolrl.tools.traits import ToolTraits
from toolrl.types import Message, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_plugin_openenv.actions import ActionError, ActionReader
from toolrl_plugin_openenv.episode import EnvironmentEpisode, NotMadeError
from toolrl_plugin_openenv.observations import Show, clean
from toolrl_plugin_openenv.results import call_result, validation_text
from toolrl_plugin_openenv.wire import INVALID, Observed, call_tool

NOTHING = "(nothing to see)"
ERRORS_IN_A_ROW = 3
"""So many steps in a row that the environment couldn't make, and a talk with it is over."""
QUEUED_STEPS = 64
"""A call's time limit begins when the steps before it are made; the policy's own, which counts from when it was asked
for, has to leave room for so many."""


class QueuedSession(AbstractAsyncContextManager[ToolSession]):
    """The session of `opening`, opened while a tool box awaits `wait_turn`, which has no time limit but its own."""

    def __init__(self, opening: AbstractAsyncContextManager[ToolSession]) -> None:
        self._opening = opening
        self._session: ToolSession | None = None

    async def wait_turn(self) -> None:
        """Wait for a place, and open the session there. Raises ToolsetError, DataError."""
        if self._session is None:
            self._session = await self._opening.__aenter__()

    async def __aenter__(self) -> ToolSession:
        await self.wait_turn()
        assert self._session is not None
        return self._session

    async def __aexit__(self, *error: Any) -> None:
        await self._opening.__aexit__(*error)


class EpisodeSession:
    """One episode. `show` makes the text of an observation."""

    def __init__(self, play: EnvironmentEpisode, show: Show) -> None:
        self._play = play
        self._show = show

    async def opening(self) -> Sequence[Message]:
        """The first observation, where there is something to see in it."""
        text = self._show((await self._play.begin()).observation)
        return (Message("user", text),) if text else ()

    async def reward(self) -> float | None:
        """What no turn was credited. Raises ToolsetError where the episode broke."""
        return await self._play.reward()


class TextSession(EpisodeSession):
    """An environment that the model talks with: what it says is the action, the observation is the answer."""

    def __init__(
        self,
        play: EnvironmentEpisode,
        show: Show,
        reader: ActionReader,
        invalid_reward: float | None,
        as_action: Callable[[Any], Any] = lambda action: action,
    ) -> None:
        """`invalid_reward` is the step reward of a turn without a valid action; `as_action` makes of what was read what
        the environment takes."""
        super().__init__(play, show)
        self._reader = reader
        self._invalid_reward = invalid_reward
        self._as_action = as_action
        self._refused = 0

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    async def call(self, call: ToolCall) -> ToolResult:
        """There is nothing to call."""
        raise ToolError(f"There is no tool {call.name!r}. Say your action.")

    async def respond(self, turn: Turn) -> Reply | None:
        """Make the step that the turn means. A turn without a valid action makes none, and is answered so."""
        if self._play.done:
            return None
        try:
            action = self._as_action(self._reader.read(turn.content))
        except ActionError as error:
            return self._invalid(str(error))
        answer = await self._play.step(action)
        if isinstance(answer, Observed):
            self._refused = 0
            text = self._show(answer.observation) or NOTHING
            return Reply((Message("user", text),), answer.reward, answer.done)
        if answer.code == INVALID:
            return self._invalid(f"That is no valid action: {validation_text(answer)}")
        self._refused += 1
        said = f"The environment couldn't do that: {clean(answer.message)[:500]}"
        if self._refused >= ERRORS_IN_A_ROW:
            raise ToolsetError(f"the environment made none of the last {self._refused} steps: {said}")
        return self._invalid(said)

    def _invalid(self, said: str) -> Reply:
        return Reply((Message("user", said),), self._invalid_reward, self._play.done)


@dataclass(frozen=True)
class EnvironmentTools:
    """The tools of an environment, the same for all episodes."""

    specs: tuple[ToolSpec, ...]
    """Under the names that the model knows."""
    own_names: Mapping[str, str]
    """Those names to the environment's own. Empty where the one tool is the environment's action."""


class ToolsSession(EpisodeSession):
    """An environment whose tools the model calls: those that it lists, or one tool made of its action."""

    def __init__(
        self,
        play: EnvironmentEpisode,
        show: Show,
        catalog: EnvironmentTools,
        read: Show,
        step_timeout: float,
        endpoint: str,
    ) -> None:
        """`read` makes the text of an action's observation, which the policy cuts. `endpoint` is what breakers and
        limits are kept under."""
        super().__init__(play, show)
        self._catalog = catalog
        self._read = read
        self._specs = {spec.name: spec for spec in catalog.specs}
        self._traits = ToolTraits(timeout=step_timeout * QUEUED_STEPS, endpoint=endpoint, per_episode=True)

    def specs(self) -> Sequence[ToolSpec]:
        return self._catalog.specs

    def traits(self, name: str) -> ToolTraits:
        """What the policy may know of a tool."""
        return self._traits

    async def call(self, call: ToolCall) -> ToolResult:
        spec = self._specs.get(call.name)
        if spec is None:
            raise ToolError(f"There is no tool {call.name!r}. Available tools: {', '.join(self._specs)}.")
        own = self._catalog.own_names.get(call.name)
        action: Mapping[str, Any] = call.arguments if own is None else call_tool(own, call.arguments)
        try:
            answer = await self._play.step(action)
        except NotMadeError as error:
            return ToolResult(str(error), error="unavailable", done=self._play.done)
        except ToolsetError as error:
            # The episode ends here, and fails when its reward is asked for.
            return ToolResult(f"The environment is gone: {error.message}.", error="unavailable", done=True)
        except (TypeError, ValueError) as error:
            raise ToolError(f"These arguments can't be sent to {call.name!r}: {error}.") from error
        return call_result(answer, spec, tuple(self._specs), self._read)
