"""Toolsets without tools, whose sessions rewrite the history of their episode; two that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from toolrl.errors import ToolError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.types import Message, Task, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_history.options import DropToolOutputOptions, StripThinkingOptions


class Session(ToolSession):
    """Of one episode. Subclasses follow `RewritesHistory`."""

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    async def call(self, call: ToolCall) -> ToolResult:
        raise ToolError(f"there is no tool {call.name!r}")


class Policy(Session, Toolset):
    """Base of a toolset that keeps nothing about an episode: it is the session of all."""

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        return nullcontext(self)


class DropToolOutput(Policy):
    """Replaces all but the last results by a placeholder, once the history is long."""

    def __init__(self, options: DropToolOutputOptions | None, context: BuildContext) -> None:
        self._options = options or DropToolOutputOptions()

    async def rewrite(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
    ) -> Sequence[Message] | None:
        """See `RewritesHistory`."""
        if tokens < in_tokens(self._options.over_tokens, limit):
            return None
        results = [place for place, message in enumerate(messages) if message.role == "tool"]
        old = set(results[: max(len(results) - self._options.keep, 0)])
        made = [self._dropped(message) if place in old else message for place, message in enumerate(messages)]
        return made if made != list(messages) else None

    def _dropped(self, result: Message) -> Message:
        if len(result.content) < self._options.min_length and not result.media:
            return result
        return replace(result, content=self._options.placeholder, media=())


class StripThinking(Policy):
    """Removes the thinking of earlier turns."""

    def __init__(self, options: StripThinkingOptions | None, context: BuildContext) -> None:
        self._keep = (options or StripThinkingOptions()).keep

    async def rewrite(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
    ) -> Sequence[Message] | None:
        """See `RewritesHistory`."""
        asked = [place for place, message in enumerate(messages) if message.role == "user"]
        end = len(messages) if self._keep == "none" or not asked else asked[-1]
        made = [replace(message, reasoning=None) for message in messages[:end]] + list(messages[end:])
        return made if made != list(messages) else None


def in_tokens(value: float, limit: int) -> float:
    """Tokens, of a number of them or of a share of the limit."""
    return value if value > 1 else value * limit
