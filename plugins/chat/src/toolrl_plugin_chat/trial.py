"""What a chat format that renders whole conversations can compare: turn by turn against the whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from toolrl.types import Message, Rendered, ToolCall, ToolSpec
from toolrl_plugin_chat.abilities import ANSWER as ANSWER
from toolrl_plugin_chat.abilities import QUESTION as QUESTION
from toolrl_plugin_chat.abilities import RESULT as RESULT
from toolrl_plugin_chat.abilities import TOOL, probe_results
from toolrl_plugin_chat.tokens import TokenFormat, common_length


class WholeFormat(TokenFormat):
    """Base of a chat format that continues its own renderings of whole conversations."""

    @abstractmethod
    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn."""

    @abstractmethod
    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn."""

    @abstractmethod
    def whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The rendering of a whole conversation, without a generation prompt."""

    def turn_by_turn(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The ids of a conversation as an episode would gather them: open, say, bridge, say … up to the last assistant
        message's end mark."""
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        ids = list(self.open(messages[: turns[0]], tools).ids)
        for number, index in enumerate(turns):
            said = self.say(messages[index])
            ids += said
            if number + 1 < len(turns):
                ids += self.bridge(said, messages[index + 1 : turns[number + 1]], tools).ids
        return tuple(ids)

    def rewritten_turns(self, subject: str, tools: Sequence[ToolSpec], *, thinks: bool) -> Iterator[str]:
        """A remark for each made-up conversation of which `subject` rewrites earlier turns. `thinks`: with reasoning in
        the assistant's messages."""
        question, reasoning = Message("user", QUESTION), "zqREASONqz" if thinks else None
        answer = Message("assistant", ANSWER, reasoning=reasoning)
        conversations = [[question, answer, Message("user", RESULT), answer]]
        if tools:
            call = probe_call(tools, 0)
            calling = Message("assistant", "", tool_calls=(call,), reasoning=reasoning)
            conversations.append([question, calling, *probe_results([call]), answer])
        for messages in conversations:
            difference = self._difference(messages, tools)
            if difference:
                roles = ", ".join(message.role for message in messages)
                yield (
                    f"{subject} rewrites earlier turns of a conversation of {roles}: {difference}. The model is "
                    "trained on the tokens it saw, and these differ from a rendering of the whole conversation"
                )

    def _difference(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Where the two ways part; empty where they don't."""
        ids, whole = self.turn_by_turn(messages, tools), self.whole(messages, tools)
        # A newline after the last end mark is never sampled; a header that serves as the end mark is.
        if whole[: len(ids)] == ids or ids[:-1] == whole:
            return ""
        place = common_length(ids, whole)
        ours, theirs = (self.decode(part[place : place + 8]).text for part in (ids, whole))
        return f"{theirs!r} instead of {ours!r}"


def probe_call(tools: Sequence[ToolSpec], index: int) -> ToolCall:
    """A made-up call of the first tool, numbered as episodes number theirs."""
    return ToolCall(tools[0].name if tools else TOOL.name, {"argument": str(index)}, id=f"call_{index + 1}")
