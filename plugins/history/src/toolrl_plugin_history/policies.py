"""Toolsets without tools, whose sessions rewrite the history of their episode; two that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from toolrl.errors import ContextFullError, ToolError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.types import Message, Task, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_history.options import DropToolOutputOptions, StripThinkingOptions, SummariseOptions


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


# Compaction by the model itself: it is asked to sum up, and goes on from the task and its summary. The question stands
# behind the history, with the same tools, so that it goes on from the conversation's tokens. Where it wouldn't fit,
# because the last turn has long results, it stands before that turn, which then stays as it is.


_MARKS = 16
"""Tokens that a chat format may put around a message, on the safe side."""


class Summarise(Policy):
    """The toolset."""

    def __init__(self, options: SummariseOptions | None, context: BuildContext) -> None:
        self.options = options or SummariseOptions()
        chat = context.chat_format
        question = chat.token_count(self.options.prompt) if chat is not None else len(self.options.prompt)
        self.room = question + self.options.max_tokens + _MARKS
        """Tokens that a question and its summary take."""

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        return nullcontext(_Summaries(self, episode))


class _Summaries(Session):
    def __init__(self, policy: Summarise, episode: EpisodeContext) -> None:
        self._policy, self._options, self._episode = policy, policy.options, episode
        self._task: tuple[Message, ...] = ()
        """The messages before the first turn."""

    async def rewrite(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
    ) -> Sequence[Message] | None:
        """See `RewritesHistory`."""
        turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if not self._task and turns:
            self._task = tuple(messages[: turns[-1]])  # Asked for the first time, so there is one turn.
        opening = len(self._task)
        turns = [place for place in turns if place >= opening]
        if not turns or tokens < min(in_tokens(self._options.at_tokens, limit), limit - self._policy.room):
            return None
        end = len(messages) if tokens + self._policy.room <= limit else turns[-1]
        kept = min([end, *turns[-self._options.keep :][: self._options.keep]])
        if kept <= opening:
            return None
        summary = await self._summary(messages[:end], tools)
        return [*self._begun(summary), *messages[kept:]] if summary else None

    async def _summary(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Empty where the model wrote none, such as one that called a tool instead, or where there is no room."""
        if self._episode.model is None:
            raise ToolError("summarise: there is no model to ask")
        asked, options = _joined(messages, self._options.prompt), self._options
        try:
            turn = await self._episode.model.ask(asked, tools, role=options.role, max_tokens=options.max_tokens)
        except ContextFullError:
            return ""
        return turn.content.strip()

    def _begun(self, summary: str) -> list[Message]:
        return _joined(self._task, self._options.message.replace("{summary}", summary))


def _joined(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a user's text behind them, in the last one where that is a user's: templates may refuse two in
    a row."""
    if messages[-1].role != "user":
        return [*messages, Message("user", text)]
    return [*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{text}")]
