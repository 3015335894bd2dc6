"""An assistant message as the model would have sampled it, in the words of a template.

The message is rendered within a made-up conversation. What stands before it is the generation prompt, what stands
behind it is known from the turn's end; what remains is the model's own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolSpec
from toolrl_plugin_chat.abilities import PROBE, QUESTION, probe_results
from toolrl_plugin_chat.conversation import Conversation
from toolrl_plugin_chat.rendering import Dict, Renderer
from toolrl_plugin_chat.thinking import closes_thinking, opened_marks
from toolrl_plugin_chat.tokens import common_length
from toolrl_plugin_chat.turns import TurnEnds


class AssistantRendering:
    """Renders assistant messages with one template."""

    def __init__(self, render: Renderer, conversation: Conversation, ends: TurnEnds, where: str) -> None:
        self._render = render
        self._conversation = conversation
        self._ends = ends
        self._where = where

    def __call__(self, message: Message) -> tuple[str, str]:
        """The end of the generation prompt, and the text of an assistant message behind it, end mark included. Raises
        ChatFormatError where the template drops a part of it."""
        specs = [ToolSpec(call.name, "") for call in message.tool_calls]
        following = probe_results(message.tool_calls) if self._conversation.native_calls else []
        opening = self._ends.opening(specs)
        tools = self._conversation.native_tools(specs)
        full = self._whole(opening, [message, *following], tools)
        if self._conversation.abilities.shape.reasoning_key is None and (message.reasoning or "").strip() not in full:
            # A template that cuts thinking out of contents may leave white space in its place.
            full = self._whole(opening, [replace(message, reasoning=None), *following], tools)
        if len(message.tool_calls) > 1 and not self._conversation.parallel:
            raise ChatFormatError(
                f"the chat template shows one call a turn, and an assistant message has {len(message.tool_calls)}",
                where=self._where,
                hint="Split the message, or let toolrl write calls itself: `options: {preamble: always}`.",
            )
        end = self._ends.after_turn(following, specs, generation_prompt=False)
        if not full.endswith(end):
            raise self._ends.unbridgeable("the end of a turn depends on its text")
        prompt = self._render(opening, tools, generation_prompt=True)
        body = self._body(prompt, opening, tools, full[: len(full) - len(end)], message)
        self._nothing_dropped(message, body)
        return self._ends.last_part(prompt), body + self._closing(end, following)

    def _whole(self, opening: list[Dict], messages: Sequence[Message], tools: list[Dict] | None) -> str:
        return self._render([*opening, *self._conversation.plain_dicts(messages)], tools)

    def _closing(self, end: str, following: Sequence[Message]) -> str:
        mark = self._ends.mark(end)
        if mark is not None:
            return end[: mark.end()]
        if self._ends.headers_end:
            return end + self._ends.header([Message("user", PROBE)])
        raise self._ends.unbridgeable(f"a turn that {len(following)} messages follow has no end mark")

    def _body(self, prompt: str, opening: list[Dict], tools: list[Dict] | None, text: str, message: Message) -> str:
        """What of `text` comes after the generation prompt, thinking included."""
        reasoning, shape = message.reasoning, self._conversation.abilities.shape
        if reasoning is not None and closes_thinking(prompt):
            raise ChatFormatError(
                "an assistant message has reasoning, and the generation prompt closes thinking before the model speaks",
                where=self._where,
                hint="Leave reasoning out of the data, or let the template think: see `template_kwargs`.",
            )
        if text.startswith(prompt):
            body = text[len(prompt) :]
            dropped = reasoning is not None and reasoning.strip() not in body
            return shape.thinking.block(reasoning or "") + body if dropped and shape.reasoning_key is None else body
        user = self._conversation.plain_dicts([Message("user", QUESTION)])
        plain = self._render([*opening, self._ends.probe_turn([]), *user], tools)
        header = prompt[: common_length(prompt, plain)]
        rest = prompt[len(header) :]
        if not text.startswith(header):
            raise self._ends.unbridgeable("an assistant's turn begins otherwise than its generation prompt")
        body = text[len(header) :]
        if not rest.strip() or closes_thinking(rest):
            return body
        marks = opened_marks(rest)
        if marks is not None and rest.strip() == marks.opening:
            return marks.rest(reasoning or "") + body
        raise self._ends.unbridgeable(f"its generation prompt ends in {rest!r}, which no turn begins with")

    def _nothing_dropped(self, message: Message, body: str) -> None:
        """A part that the template leaves out in silence would be a wrong demonstration."""
        lost = [part for part in ("content", "reasoning") if (getattr(message, part) or "").strip() not in body]
        lost += [f"call of {call.name}" for call in message.tool_calls if call.name not in body]
        if lost:
            raise ChatFormatError(
                f"the chat template drops the {' and the '.join(lost)} of an assistant message",
                where=self._where,
                hint="Leave that part out of the data, or give a template that shows it.",
            )
