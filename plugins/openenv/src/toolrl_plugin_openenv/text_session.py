"""An environment that the model talks with: what it says is the action, the observation is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from toolrl.errors import ToolError, ToolsetError
from toolrl.protocols import Reply
from toolrl.types import Message, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_plugin_openenv.actions import ActionError, ActionReader
from toolrl_plugin_openenv.episode import ERRORS_IN_A_ROW, StepRefusedError, TextEnvironment
from toolrl_plugin_openenv.observations import Show

NOTHING = "(nothing to see)"


class TextSession:
    """One episode. It has no tools."""

    def __init__(self, game: TextEnvironment, reader: ActionReader, show: Show, invalid_reward: float | None) -> None:
        """`invalid_reward` is the step reward of a turn without a valid action."""
        self._game = game
        self._reader = reader
        self._show = show
        self._invalid_reward = invalid_reward
        self._refused = 0
        self._done = False

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    async def opening(self) -> Sequence[Message]:
        """The first observation."""
        first = await self._game.begin()
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
            observed = await self._game.act(self._reader.read(turn.content))
        except ActionError as error:
            self._done = error.over
            return self._invalid(str(error))
        except StepRefusedError as error:
            self._refused += 1
            if self._refused >= ERRORS_IN_A_ROW:
                raise ToolsetError(f"the environment made none of the last {self._refused} steps: {error}") from error
            return self._invalid(str(error))
        self._refused, self._done = 0, observed.done
        text = self._show(observed.observation) or NOTHING
        return Reply((Message("user", text),), observed.reward, observed.done)

    async def reward(self) -> float | None:
        """What no turn was credited."""
        return await self._game.reward()

    def _invalid(self, text: str) -> Reply:
        return Reply((Message("user", text),), self._invalid_reward, self._done)
