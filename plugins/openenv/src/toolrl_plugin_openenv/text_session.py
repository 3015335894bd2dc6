"""An environment that the model talks with: what it says is the action, the observation is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl.errors import ToolError, ToolsetError
from toolrl.protocols import Reply
from toolrl.types import Message, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_plugin_openenv.actions import ActionError, ActionReader
from toolrl_plugin_openenv.observations import Show
from toolrl_plugin_openenv.wire import Observed

NOTHING = "(nothing to see)"
ERRORS_IN_A_ROW = 3
"""So many steps in a row that the environment couldn't make, and a talk with it is over."""


class StepRefusedError(Exception):
    """The environment couldn't make a step of an action; the message is for the model."""


class TextSession:
    """One episode. It has no tools."""

    def __init__(self, reader: ActionReader, show: Show, invalid_reward: float | None) -> None:
        """`invalid_reward` is the step reward of a turn without a valid action."""
        self._reader = reader
        self._show = show
        self._invalid_reward = invalid_reward
        self._refused = 0
        self._done = False

    async def begin(self) -> Observed:
        """The first observation. Raises ToolsetError."""
        raise NotImplementedError

    async def act(self, action: Any) -> Observed:
        """Make a step. Raises ActionError, StepRefusedError, and ToolsetError where the episode can't go on."""
        raise NotImplementedError

    async def reward(self) -> float | None:
        """What no turn was credited. Raises ToolsetError where the episode broke."""
        raise NotImplementedError

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    async def opening(self) -> Sequence[Message]:
        """The first observation."""
        first = await self.begin()
        self._done = first.done
        text = self._show(first.observation)
        return (Message("user", text),) if text else ()

    async def call(self, call: ToolCall) -> ToolResult:
        """There is nothing to call."""
        raise ToolError(f"There is no tool {call.name!r}. Say your action.")

    async def respond(self, turn: Turn) -> Reply | None:
        """Make the step that the turn means. A turn without a valid action makes none, and is answered so."""
        if self._done:
            return None
        try:
            observed = await self.act(self._reader.read(turn.content))
        except ActionError as error:
            self._done = error.over
            return self._invalid(error)
        except StepRefusedError as error:
            self._refused += 1
            if self._refused >= ERRORS_IN_A_ROW:
                raise ToolsetError(f"the environment made none of the last {self._refused} steps: {error}") from error
            return self._invalid(error)
        self._refused, self._done = 0, observed.done
        text = self._show(observed.observation) or NOTHING
        return Reply((Message("user", text),), observed.reward, observed.done)

    def _invalid(self, error: Exception) -> Reply:
        return Reply((Message("user", str(error)),), self._invalid_reward, self._done)
