"""The chat format `plain`: a prompt laid out as text, for base models without a chat template.

A message is its role's prefix, its content and its role's suffix, all from the options. The prompt ends with the
assistant's prefix; a turn ends with the end-of-sequence token or with one of `turn_end`. Tool results are messages
like others, or stand inside the turn where the parser says so. Special tokens in texts from outside are plain text, and
what comes during an episode can't write a role's prefix (`control.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Rendered, ToolSpec
from toolrl_plugin_chat.codec import Codec
from toolrl_plugin_chat.control import OutsideTexts, Shield, turn_marks
from toolrl_plugin_chat.options import PlainOptions
from toolrl_plugin_chat.preamble import preamble, with_calls, with_system
from toolrl_plugin_chat.thinking import THINK, opened_marks
from toolrl_plugin_chat.tokens import TokenFormat, model_end_ids, refuse_media, turn_end_ids


class PlainFormat(TokenFormat):
    """See the module. Stateless; built once and shared by all episodes of an environment."""

    def __init__(self, options: PlainOptions | None, context: BuildContext) -> None:
        self._where = context.where or "chat_format"
        self._options = options or PlainOptions()
        self._codec = Codec(context.tokenizer, self._where)
        self._outside = OutsideTexts(self._codec.special, (), ())
        self._turn_marks = turn_marks(text for pair in self._affixes().values() for text in pair)
        self._bos = self._find_bos()
        self.end_ids = self._find_ends()

    # The protocol.

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn. Raises ChatFormatError."""
        refuse_media(messages, self._where)
        shield = Shield()
        text = self._layout(self._with_preamble(messages, tools), shield) + self._options.assistant_prefix
        ids = [*self._bos, *self._codec.encode_shielded(text, shield)]
        if not ids:
            raise ChatFormatError(
                "the prompt has no tokens", where=self._where, hint="Give the messages or the prefixes some text."
            )
        return Rendered(tuple(ids), in_thinking=opened_marks(text) is not None)

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn: its end where it lacks one, the assistant's suffix, `messages`, the prompt."""
        refuse_media(messages, self._where)
        ended = bool(sampled_ids) and sampled_ids[-1] in self.end_ids
        shield = Shield()
        options = self._options
        layout = self._layout([self.without_marks(message) for message in messages], shield)
        text = options.assistant_suffix + layout + options.assistant_prefix
        ids = self._codec.encode_shielded_after(text, shield)
        return Rendered((*(() if ended else self.end_ids[:1]), *ids), in_thinking=opened_marks(text) is not None)

    def _said(self, message: Message) -> Sequence[int]:
        return [*self._codec.encode_after(self._words(message)), self.end_ids[0]]

    # Layout.

    def _affixes(self) -> dict[str, tuple[str, str]]:
        options = self._options
        return {
            "system": (options.system_prefix, options.system_suffix),
            "user": (options.user_prefix, options.user_suffix),
            "assistant": (options.assistant_prefix, options.assistant_suffix),
            "tool": (options.tool_prefix, options.tool_suffix),
        }

    def _layout(self, messages: Sequence[Message], shield: Shield) -> str:
        affixes, pieces = self._affixes(), []
        for message in messages:
            text = self._words(message) if message.role == "assistant" else message.content
            (hidden,) = self._outside.hidden([replace(message, content=text)], shield)
            pieces += [affixes[message.role][0], hidden.content, affixes[message.role][1]]
        return "".join(pieces)

    def _words(self, message: Message) -> str:
        """An assistant message as sampled: thinking, text, calls; first a blank where the prefix ends without one."""
        prefix = self._options.assistant_prefix
        blank = " " if prefix and not prefix[-1].isspace() else ""
        opened = opened_marks(prefix)
        if message.reasoning is None:
            thinking = ""
        else:
            thinking = opened.rest(message.reasoning) if opened else THINK.block(message.reasoning)
        return blank + thinking + with_calls(message.content, message.tool_calls)

    def _with_preamble(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[Message]:
        if not tools or not self._options.preamble:
            return messages
        return with_system(messages, preamble(tools, self._options.preamble_style))

    # Marks.

    def _find_bos(self) -> tuple[int, ...]:
        tokenizer = self._codec.tokenizer
        wanted, bos = self._options.add_bos, tokenizer.bos_token_id
        if wanted is None:
            first = list(tokenizer("x")["input_ids"])[:1]
            return (bos,) if bos is not None and first == [bos] else ()
        if wanted and bos is None:
            raise ChatFormatError(
                "add_bos is true, and the tokenizer has no beginning-of-sequence token",
                where=self._where,
                hint="Leave add_bos out.",
            )
        return (bos,) if wanted else ()

    def _find_ends(self) -> tuple[int, ...]:
        ends = turn_end_ids(self._codec, self._options.turn_end, self._where)
        ends += model_end_ids(self._codec, self._where)
        if not ends:
            raise ChatFormatError(
                "nothing ends a turn: the tokenizer has no end-of-sequence token",
                where=self._where,
                hint="Give `turn_end`, a text that is one token.",
            )
        return tuple(dict.fromkeys(ends))
