"""The chat format `template`: any tokenizer's own chat template, turn by turn and without rewriting a token.

A template renders whole conversations. To go on from a sampled turn, whose tokens must stay as they are, the format
renders a made-up conversation in which a probe stands at the end of the assistant's turn, and takes what comes after
the probe: the end mark, the new messages, the next generation prompt. What a template does to earlier turns (Qwen3
removes their thinking) happens before the probe and doesn't matter. The bridge begins with an added token, at which a
tokenizer splits a text before all else, so it encodes to the same ids by itself as it does within the conversation.

Where the template ignores tools, calls or results, the format writes them itself (`preamble.py`), and the template
sees plain messages. Control tokens in texts from outside (user messages, tool results, tool descriptions) are encoded
as plain text; system and assistant messages are the author's own and may hold them. What comes during an episode can't
write turn marks that are ordinary text (`[/INST]`) either: `control.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Rendered, ToolSpec
from toolrl_plugin_chat.abilities import QUESTION, probing, study
from toolrl_plugin_chat.assistant_rendering import AssistantRendering
from toolrl_plugin_chat.codec import Codec
from toolrl_plugin_chat.control import OutsideTexts, Shield, turn_marks
from toolrl_plugin_chat.conversation import Conversation
from toolrl_plugin_chat.media import Images, check_marks
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.preamble import Wording
from toolrl_plugin_chat.rendering import Renderer
from toolrl_plugin_chat.thinking import opened_marks
from toolrl_plugin_chat.tokens import refuse_media
from toolrl_plugin_chat.trial import WholeFormat
from toolrl_plugin_chat.turns import TurnEnds


class TemplateFormat(WholeFormat):
    """See the module. Stateless; built once and shared by all episodes of an environment."""

    def __init__(self, options: TemplateOptions | None, context: BuildContext, wording: Wording | None = None) -> None:
        """`wording`: how a subclass describes tools in plain messages."""
        self._where = context.where or "chat_format"
        self._options = options or TemplateOptions()
        self._codec = Codec(context.tokenizer, self._where)
        self._render = Renderer(
            context.tokenizer, self._options.chat_template, self._options.template_kwargs, self._where
        )
        self.abilities = study(self._render)
        """What the template was found to do."""
        self._conversation = Conversation(self._options, self.abilities, self._where, wording)
        self._unfit: ChatFormatError | None = None
        """Why the template fits no conversation with tools."""
        probe = probing(self._render) if self.abilities.needs_tools else self._render
        self._ends = self._find_ends(probe, wording)
        self._assistant = AssistantRendering(probe, self._conversation, self._ends, self._where)
        self.end_ids = self._ends.ids
        structural = self._ends.structural_tokens()
        markup = {text for text in self._codec.added if self._is_markup(text)}
        self._codec.add_control(structural | markup)
        self._outside = OutsideTexts(self._codec.special, structural, markup)
        self._turn_marks = turn_marks(self._ends.plain_marks())
        self._images = (
            Images(context.processor, context.tokenizer, self._where) if context.processor is not None else None
        )

    def _find_ends(self, probe: Renderer, wording: Wording | None) -> TurnEnds:
        """The ends of turns. Those of a template whose calls can't be continued are found without calls: it fits an
        environment that has no tools."""
        try:
            return TurnEnds(probe, self._codec, self._conversation, self._options.turn_end, self._where)
        except ChatFormatError as error:
            if not self._conversation.native_calls:
                raise
            options = self._options.model_copy(update={"tool_role": "auto"})
            without = Conversation(options, replace(self.abilities, calls=False), self._where, wording)
            ends = TurnEnds(probe, self._codec, without, self._options.turn_end, self._where)
            self._conversation, self._unfit = without, error
            return ends

    def _check_fit(self, tools: Sequence[ToolSpec], messages: Sequence[Message] = ()) -> None:
        """Raise ChatFormatError for tools that the template can't do with, or without which it can't do."""
        if self._unfit is not None and (tools or any(it.role == "tool" or it.tool_calls for it in messages)):
            raise self._unfit
        if self.abilities.needs_tools and not tools:
            raise ChatFormatError(
                "the chat template renders nothing without tools, and the environment has none",
                where=self._where,
                hint="Add `tools:`, or give a template that does without: `options: {chat_template: FILE.jinja}`.",
            )

    # The protocol.

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn. Raises ChatFormatError."""
        self._check_fit(tools, messages)
        shield = Shield()
        text = self._conversation_text(messages, tools, shield, generation_prompt=True)
        return self._rendered(self._codec.encode_shielded(text, shield), messages, text)

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn. Raises ChatFormatError."""
        self._check_fit(tools, messages)
        shield = Shield()
        hidden = self._hide([self.without_marks(message) for message in messages], shield)
        specs = self._outside.hidden_specs(tools, shield)
        text = self._ends.after_turn(hidden, specs, generation_prompt=True)
        ids = self._codec.encode_shielded(text, shield)
        return self._rendered(self._ends.skip_mark(sampled_ids, ids), messages, text)

    def _said(self, message: Message) -> Sequence[int]:
        if self._unfit is not None and message.tool_calls:
            raise self._unfit
        prompt_end, text = self._assistant(message)
        return self._codec.encode_after(text, prompt_end)

    # Besides the protocol.

    def whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The template's own rendering of a whole conversation, without a generation prompt."""
        shield = Shield()
        first = next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
        messages = [*messages[:first], *map(self.without_marks, messages[first:])]
        text = self._conversation_text(messages, tools, shield, generation_prompt=False)
        return self._rendered(self._codec.encode_shielded(text, shield), messages, text).ids

    def check(self, tools: Sequence[ToolSpec]) -> list[str]:
        """Try the format with these tools before a run. Raises ChatFormatError where a turn can't be bridged; returns
        remarks on what the user may want to know."""
        self._check_fit(tools)
        preamble, described, abilities = self._options.preamble, self._conversation.own_preamble, self.abilities
        remarks = [f"doesn't use `{name}` of template_kwargs" for name in self._render.unused_variables()]
        if not abilities.system:
            remarks.append("shows no system message; one stands before the user's first words instead")
        if tools and described and preamble == "auto":
            remarks.append(f"ignores {abilities.ignored}; toolrl's own preamble describes them")
        elif tools and not self._conversation.native_calls and preamble == "auto":
            remarks.append("shows tools and no calls; calls stand in the text, in the form of the parser `hermes`")
        remarks = [f"the chat template {remark}" for remark in remarks]
        thinks = self.open([Message("user", QUESTION)], tools).in_thinking
        return [*remarks, *self.rewritten_turns("the chat template", tools, thinks=thinks)]

    def _rendered(self, ids: Sequence[int], messages: Sequence[Message], text: str) -> Rendered:
        """With the images of the messages among the ids."""
        media = [item for message in messages for item in message.media]
        opened = opened_marks(text) is not None
        if self._images is None or not media:
            return Rendered(tuple(ids), in_thinking=opened)
        return Rendered(*self._images.put_in(ids, media), in_thinking=opened)

    def _conversation_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], shield: Shield, *, generation_prompt: bool
    ) -> str:
        hidden, specs = self._hide(messages, shield), self._outside.hidden_specs(tools, shield)
        dicts = self._conversation.dicts(hidden, specs)
        return self._render(dicts, self._conversation.native_tools(specs), generation_prompt=generation_prompt)

    # Texts from outside.

    def _hide(self, messages: Sequence[Message], shield: Shield) -> list[Message]:
        refuse_media(messages, self._where, images=self._images is not None)
        check_marks(messages, self._where)
        return self._outside.hidden(messages, shield)

    def _is_markup(self, text: str) -> bool:
        """Whether an added token is a tag with a meaning for the model or for a parser. Others that look like tags
        are not: some vocabularies hold HTML."""
        if len(text) < 3 or text[0] not in "<[" or text[-1] not in ">]":
            return False
        written = text in self._render.source or text in self._conversation.markup
        return written or any(word in text.lower() for word in ("think", "tool"))
