"""An environment whose tools the model calls: those that it lists, or one tool made of its action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ToolError, ToolsetError, ToolTimeoutError
from toolrl.tools.traits import ToolTraits
from toolrl.types import Message, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_openenv.connection import SlowError
from toolrl_plugin_openenv.episode import NotMadeError, OpenEnvEpisode
from toolrl_plugin_openenv.observations import Show
from toolrl_plugin_openenv.results import call_result
from toolrl_plugin_openenv.wire import call_tool

QUEUED_STEPS = 64
"""A call's time limit begins when the steps before it are made; the policy's own, which counts from when it was asked
for, has to leave room for so many."""


@dataclass(frozen=True)
class EnvironmentTools:
    """The tools of an environment, the same for all episodes."""

    specs: tuple[ToolSpec, ...]
    """Under the names that the model knows."""
    own_names: Mapping[str, str]
    """Those names to the environment's own. Empty where the one tool is the environment's action."""


class ToolsSession:
    """One episode."""

    def __init__(
        self,
        play: OpenEnvEpisode,
        catalog: EnvironmentTools,
        show: Show,
        read: Show,
        step_timeout: float,
        endpoint: str,
    ) -> None:
        """`show` makes the text of the first observation; `read` that of an action's, which the policy cuts. `endpoint`
        is what breakers and limits are kept under."""
        self._play = play
        self._catalog = catalog
        self._show = show
        self._read = read
        self._specs = {spec.name: spec for spec in catalog.specs}
        self._step_timeout = step_timeout
        self._traits = ToolTraits(timeout=step_timeout * QUEUED_STEPS, endpoint=endpoint, per_episode=True)

    def specs(self) -> Sequence[ToolSpec]:
        return self._catalog.specs

    def traits(self, name: str) -> ToolTraits:
        """What the policy may know of a tool."""
        return self._traits

    async def opening(self) -> Sequence[Message]:
        """The first observation, where there is something to see in it."""
        first = await self._play.begin()
        text = self._show(first.observation)
        return (Message("user", text),) if text else ()

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
        except SlowError as error:
            raise ToolTimeoutError(
                f"The tool {call.name!r} took too long: no answer within {self._step_timeout:g} s. It may have its "
                "effect all the same: look before you call it again."
            ) from error
        except ToolsetError as error:
            # The episode ends here, and fails when its reward is asked for.
            return ToolResult(f"The environment is gone: {error.message}.", error="unavailable", done=True)
        except (TypeError, ValueError) as error:
            raise ToolError(f"These arguments can't be sent to {call.name!r}: {error}.") from error
        return call_result(answer, spec, tuple(self._specs), self._read)

    async def reward(self) -> float | None:
        """What no turn was credited. Raises ToolsetError where the episode broke."""
        return await self._play.reward()
