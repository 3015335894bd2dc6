"""The chat format `renderers`: a model family's own renderer from the library of that name, turn by turn.

A prompt is the library's rendering; what follows a turn and what a turn says are read off its renderings of made-up
conversations (`turns.py`), so that turns put together are what the library makes of the whole. Control strings in texts
from outside (user messages, tool results, tool descriptions) are encoded as plain text (`setup.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from toolrl.protocols import BuildContext
from toolrl.types import Message, Rendered, ToolCall, ToolSpec
from toolrl_plugin_chat.control import OutsideTexts, Shield
from toolrl_plugin_chat.preamble import with_system
from toolrl_plugin_chat.tokens import refuse_media
from toolrl_plugin_chat.trial import ANSWER, QUESTION, RESULT, WholeFormat
from toolrl_plugin_renderers.options import RenderersFormatOptions
from toolrl_plugin_renderers.setup import Setup
from toolrl_plugin_renderers.turns import Turns

_PROBE = ToolSpec("probe_tool", "Looks a probe up.", {"type": "object", "properties": {"a": {"type": "string"}}})
_PREAMBLE = """# Tools

You may call one or more functions to assist with the user query. Their signatures:
{tools}

Write a call like this, TOOL, ARGUMENT and VALUE replaced, and as many as you need:
{form}"""


class RenderersFormat(WholeFormat):
    """See the module. Stateless; built once and shared by all episodes of an environment."""

    def __init__(self, options: RenderersFormatOptions | None, context: BuildContext) -> None:
        self._where = context.where or "chat_format"
        self._setup = Setup(options or RenderersFormatOptions(), context.tokenizer, self._where)
        self._codec = self._setup.codec
        self.end_ids: tuple[int, ...] = self._setup.stops
        self._turns = Turns(self._setup)
        ends = {text for text, token in self._codec.added.items() if token in self.end_ids}
        turn_marks, markup = self._written(with_tools=False) | ends, self._written(with_tools=True) | self._tags()
        self._codec.add_control(turn_marks | markup)
        self._outside = OutsideTexts(self._codec.special, turn_marks, markup)

    # The protocol.

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn. Raises ChatFormatError."""
        return self._rendered(self._whole(messages, tools, generation_prompt=True))

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn. Raises ChatFormatError."""
        shield = Shield()
        hidden = self._hide(self._with_native_ids(sampled_ids, messages), shield)
        with self._setup.tokenizer.hiding(shield):
            mark, rest = self._turns.after(hidden, self._shielded(tools, shield))
        self._turns.check_shown(messages, rest)
        last = sampled_ids[-1] if sampled_ids else None
        ended = last in self.end_ids and (last == mark or mark not in self._turns.headers)
        return self._rendered(rest if ended or mark is None else [mark, *rest])

    def _said(self, message: Message) -> Sequence[int]:
        return self._turns.spoken(message)

    def inline(self, text: str) -> tuple[int, ...]:
        """Ids of a text inside a turn; marks of the family in it are plain text."""
        shield = Shield()
        return tuple(self._codec.encode_shielded_after(shield.hide(text, self._outside.tools), shield))

    # Besides the protocol.

    def whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The library's rendering of a whole conversation, without a generation prompt."""
        return tuple(self._whole(messages, tools, generation_prompt=False))

    def check(self, tools: Sequence[ToolSpec]) -> list[str]:
        """Try the format with these tools before a run. Raises ChatFormatError where a turn can't be gone on from;
        returns remarks on what the user may want to know."""
        remarks = []
        if tools and not self._turns.shows_tools:
            remarks.append(f"renderer {self._setup.name!r} ignores tools; toolrl adds a preamble that lists them")
        if tools and not self._turns.several_calls:
            remarks.append(f"renderer {self._setup.name!r} renders one call a turn")
        prompt = self.open([Message("user", QUESTION)], tools)
        unasked = self._setup.family.thinks_unasked and not self._setup.closes_thinking(prompt.ids)
        thinks = prompt.in_thinking or unasked
        return [*remarks, *self.rewritten_turns(f"renderer {self._setup.name!r}", tools, thinks=thinks)]

    # Rendering.

    def _whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> list[int]:
        shield = Shield()
        hidden, specs = self._hide(messages, shield), self._shielded(tools, shield)
        if specs and not self._turns.shows_tools:
            lines = "\n".join(json.dumps(spec.as_function(), ensure_ascii=False) for spec in specs)
            told = _PREAMBLE.replace("{form}", self._turns.form).replace("{tools}", lines, 1)
            hidden = with_system(hidden, told)
        with self._setup.tokenizer.hiding(shield):
            return self._turns.ids(hidden, specs, generation_prompt=generation_prompt)

    def _rendered(self, ids: Sequence[int]) -> Rendered:
        return Rendered(tuple(ids), in_thinking=self._setup.in_thinking(ids))

    def _with_native_ids(self, sampled_ids: Sequence[int], messages: Sequence[Message]) -> Sequence[Message]:
        """The results with the ids that the model gave its calls, for families that repeat them."""
        results = [message for message in messages if message.role == "tool"]
        if not self._setup.family.native_ids or not results:
            return messages
        try:
            calls = self._setup.renderer.parse_response(list(sampled_ids)).tool_calls
        except Exception:  # noqa: BLE001 - what can't be read has no ids
            return messages
        if len(calls) != len(results):
            return messages
        given = iter(calls)
        return [
            replace(message, tool_call_id=next(given).id or message.tool_call_id) if message.role == "tool" else message
            for message in messages
        ]

    # Texts from outside.

    def _written(self, *, with_tools: bool) -> set[str]:
        """Added tokens that the renderer itself writes between messages, but for those that mark thinking."""
        question, answer = Message("user", QUESTION), Message("assistant", ANSWER)
        if with_tools:
            call = ToolCall(_PROBE.name, {"a": "x"}, id="call_1")
            calls = Message("assistant", "", tool_calls=(call,), reasoning="zqREASONqz")
            result = Message("tool", RESULT, tool_call_id="call_1", name=_PROBE.name)
            ids = self._turns.ids([question, calls, result], [_PROBE], generation_prompt=True)
        else:
            ids = self._turns.ids([question, answer, question], (), generation_prompt=True)
        names = {token: text for text, token in self._codec.added.items()}
        found = {names[token] for token in ids if token in names}
        return found if with_tools else {text for text in found if "think" not in text.lower()}

    def _tags(self) -> set[str]:
        """Added tokens that look like tags of a tool's or of thinking."""
        tags = (text for text in self._codec.added if len(text) > 2 and text[0] in "<[" and text[-1] in ">]")
        return {text for text in tags if any(word in text.lower() for word in ("think", "tool"))}

    def _shielded(self, tools: Sequence[ToolSpec], shield: Shield) -> Sequence[ToolSpec]:
        return tools if self._setup.family.encodes_itself else self._outside.hidden_specs(tools, shield)

    def _hide(self, messages: Sequence[Message], shield: Shield) -> list[Message]:
        refuse_media(messages, self._where)
        return list(messages) if self._setup.family.encodes_itself else self._outside.hidden(messages, shield)
