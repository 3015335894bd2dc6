"""Where an assistant's turn begins and ends in the library's rendering.

The library renders whole conversations and marks what a model would have sampled. So the rest of any conversation after
a turn can be read off a made-up one: a question, a made-up turn with the calls that the new messages answer, the new
messages, and the generation prompt; what stands behind the made-up turn's last sampled token is what follows every turn
that these messages follow. Whatever a family does to earlier turns happens before that place and doesn't matter. The
library's own `bridge_to_next_turn` does the same from the real ids, but gives nothing for a turn that ended while
thinking, for several results of DeepSeek V4, and at other places, and loses a line break after a turn of Laguna XS.2.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.tokens import common_length
from toolrl_plugin_chat.trial import ANSWER, QUESTION, RESULT
from toolrl_plugin_renderers.conversation import NAMELESS, Dict, dicts
from toolrl_plugin_renderers.setup import TAIL, Setup, functions

PROBE_TOOL = "zqTOOLqz"
_WAY_OUT = "Use another renderer, or `chat_format: template` and a parser for the model's syntax."
_ASK = Message("user", QUESTION)


class Turns:
    """Turns of one renderer."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.headers = frozenset(setup.codec.added[text] for text in setup.family.headers if text in setup.codec.added)
        prompt = self.ids([_ASK], (), generation_prompt=True)
        if prompt == self.ids([_ASK], ()):
            raise self._error("with these settings it writes no generation prompt", "Leave them out of `options`.")
        self.several_calls = self._takes_several()
        """Whether one turn can hold several calls."""

    # Rendering.

    def ids(
        self, messages: Sequence[Message], specs: Sequence[ToolSpec], *, generation_prompt: bool = False
    ) -> list[int]:
        """Ids of a conversation. Raises ChatFormatError where the family refuses it."""
        return list(self._render(dicts(messages, self._setup.family), specs, generation_prompt).token_ids)

    def _render(self, entries: Sequence[Dict], specs: Sequence[ToolSpec], generation_prompt: bool) -> Any:
        try:
            return self._setup.renderer.render(
                list(entries), tools=functions(specs), add_generation_prompt=generation_prompt
            )
        except ChatFormatError:
            raise
        except Exception as error:
            roles = ", ".join(entry["role"] for entry in entries)
            reason = f"it refuses a conversation of {roles}: {type(error).__name__}: {error}"
            raise self._error(reason, _WAY_OUT) from error

    # After a turn.

    def after(self, messages: Sequence[Message], specs: Sequence[ToolSpec]) -> tuple[int | None, list[int]]:
        """The end mark of a turn that `messages` follow, and what comes behind it, the generation prompt last. The mark
        is None where the family writes none there."""
        entries = dicts([_ASK, self._made_up(messages), *messages], self._setup.family)
        rendered = self._render(entries, specs, True)
        last = _last_sampled(rendered, 1)
        mark = rendered.token_ids[last]
        return (mark if mark in self._setup.stops else None), list(rendered.token_ids[last + 1 :])

    def check_shown(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """Raise ChatFormatError for a system message that isn't among `ids`: some families move all of them to the
        beginning, where nothing can be added any more."""
        said = [message.content for message in messages if message.role == "system" and message.content]
        if said and not all(self._shows(self._setup.text(ids), content) for content in said):
            raise self._error("it has no place for a system message after a turn", "Say it in a user message.")

    def _made_up(self, messages: Sequence[Message]) -> Message:
        """A turn that `messages` can follow: with a call for each of the results that they begin with."""
        calls = []
        for message in messages:
            if message.role != "tool":
                break
            calls.append(ToolCall(message.name or NAMELESS, {}, id=message.tool_call_id or ""))
        calls = calls if self.several_calls else calls[-1:]
        return Message("assistant", "" if calls else ANSWER, tool_calls=tuple(calls))

    def _takes_several(self) -> bool:
        calls = (ToolCall(NAMELESS, {}, id="call_1"), ToolCall(NAMELESS, {}, id="call_2"))
        results = [Message("tool", RESULT, tool_call_id=call.id, name=call.name) for call in calls]
        try:
            self.ids([_ASK, Message("assistant", "", tool_calls=calls), *results], ())
        except ChatFormatError:
            return False
        return True

    # Saying a message.

    def spoken(self, message: Message) -> list[int]:
        """Ids of an assistant message from the generation prompt on, end mark included. Raises ChatFormatError where a
        part of it is dropped, or where an end mark would stand inside it."""
        setup, specs = self._setup, [ToolSpec(call.name, "") for call in message.tool_calls]
        rendered = self._answered(message)
        full = list(rendered.token_ids[: _last_sampled(rendered, 1) + 1])
        if full[-1] not in setup.stops:
            mark, _ = self.after(_results(message) or [_ASK], specs)
            if mark is None:
                raise self._error("it doesn't end a turn", _WAY_OUT)
            full.append(mark)
        prompt = self.ids([_ASK], specs, generation_prompt=True)
        if message.reasoning and setup.closes_thinking(prompt):
            raise self._error(
                "an assistant message has reasoning, and the generation prompt closes thinking before the model speaks",
                "Leave reasoning out of the data, or let the model think: see `options`.",
            )
        ignored = self._ignored(message, rendered)
        body = self._body(prompt, full, message.reasoning or "", "reasoning" in ignored)
        if setup.in_thinking(prompt):
            ignored.discard("reasoning")  # `_body` put it back.
        self._nothing_dropped(message, setup.text(body[:-1]), ignored)
        inside = set(body[:-1]).intersection(setup.stops)
        if inside:
            reason = f"the message holds {setup.text([inside.pop()])!r} before its end, where a model would stop"
            raise self._error(reason, "Split it into several turns, or take that out of the data.")
        return body

    def _answered(self, message: Message) -> Any:
        """The rendering of a question, the message, and results of its calls."""
        specs = [ToolSpec(call.name, "") for call in message.tool_calls]
        return self._render(dicts([_ASK, message, *_results(message)], self._setup.family), specs, False)

    def _ignored(self, message: Message, rendered: Any) -> set[str]:
        """The parts of a message that its rendering doesn't depend on. To look for their text isn't enough: an answer
        may repeat what was thought."""
        ignored = set()
        for part in ("content", "reasoning"):
            text = getattr(message, part)
            if text:
                changed: dict[str, Any] = {part: f"{text} {ANSWER}"}
                other = self._answered(replace(message, **changed))
                if list(other.token_ids) == list(rendered.token_ids):
                    ignored.add(part)
        return ignored

    def _body(self, prompt: list[int], full: list[int], reasoning: str, ignored: bool) -> list[int]:
        """What of `full` comes after the generation prompt, thinking included. Where the prompt begins the thinking
        block that the rendering lacks, or ends one, the rest is found in the text. `ignored`: `full` lacks the
        reasoning."""
        same = common_length(prompt, full)
        setup, mark = self._setup, full[-1]
        opened, text = setup.text(prompt[same:]), setup.text(full[same:-1])
        goes_on = text.startswith(opened)
        rest = text[len(opened) :] if goes_on else text
        if goes_on and not ignored and self._shows(rest, reasoning):
            return full[same:] if not opened else [*setup.codec.encode_after(rest), mark]
        if setup.in_thinking(prompt):
            begin, end = setup.family.think
            if not goes_on:
                # A part of the opening mark may be common to both; it doesn't belong to what is said.
                before = [i for i in range(same, max(same - TAIL, 0), -1) if setup.text(prompt[i:]).startswith(begin)]
                rest = setup.text(full[before[0] : -1]) if before else rest
            closed = rest.lstrip() if rest.lstrip().startswith(end) else f"{setup.family.thinking_ends}{rest}"
            return [*setup.codec.encode_after(f"{reasoning}{closed}"), mark]
        if not opened or setup.closes_thinking(prompt):
            return full[same:]
        raise self._error(f"a turn begins otherwise than its generation prompt, {opened!r}", _WAY_OUT)

    def _nothing_dropped(self, message: Message, body: str, ignored: Set[str]) -> None:
        """A part that is left out in silence would be a wrong demonstration."""
        parts = ("content", "reasoning")
        lost = [part for part in parts if part in ignored or not self._shows(body, getattr(message, part) or "")]
        lost += [f"call of {call.name}" for call in message.tool_calls if not self._shows(body, call.name)]
        if lost:
            raise self._error(
                f"it drops the {' and the '.join(lost)} of an assistant message", "Leave that part out of the data."
            )

    def _shows(self, body: str, part: str) -> bool:
        """Whether a decoded text holds a part, as it is or as the tokenizer's normaliser writes it."""
        part = part.strip()
        return part in body or self._setup.text(self._setup.codec.encode(part)).strip() in body

    @cached_property
    def form(self) -> str:
        """How a call is written, as text."""
        call = ToolCall("TOOL", {"ARGUMENT": "VALUE"}, id="call_1")
        text = self._setup.text(self.spoken(Message("assistant", "", tool_calls=(call,)))[:-1])
        family = self._setup.family
        marks = [mark for mark in (family.sections[0], family.form_begins, *family.opens) if mark and mark in text]
        start = min((text.index(mark) for mark in marks), default=0)
        return text[start:].strip()

    @cached_property
    def shows_tools(self) -> bool:
        """Whether prompts list the tools."""
        spec = ToolSpec(PROBE_TOOL, "")
        return PROBE_TOOL in self._setup.text(self.ids([_ASK], [spec], generation_prompt=True))

    def _error(self, reason: str, hint: str) -> ChatFormatError:
        return ChatFormatError(f"renderer {self._setup.name!r}: {reason}", where=self._setup.where, hint=hint)


def _results(message: Message) -> list[Message]:
    """Made-up results of a message's calls."""
    return [Message("tool", RESULT, tool_call_id=call.id or None, name=call.name) for call in message.tool_calls]


def _last_sampled(rendered: Any, index: int) -> int:
    """The place of the last token that a model would have sampled in message `index`."""
    marks = zip(rendered.sampled_mask, rendered.message_indices, strict=True)
    return max(place for place, (sampled, owner) in enumerate(marks) if sampled and owner == index)
