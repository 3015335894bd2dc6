"""The chat formats: `tir` for models with a chat template, `torl` for base models.

Neither hands the tools to the template, which would describe another syntax. `tir` describes them in the system
message; ToRL's prompt asks for programs and describes nothing. Results stand inside the turn; only behind an end
mark that the model sampled do they follow in a message of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from toolrl.protocols import BuildContext
from toolrl.types import Message, Rendered, ToolSpec
from toolrl_plugin_chat.options import PlainOptions, SourceOptions, TemplateOptions
from toolrl_plugin_chat.plain import PlainFormat
from toolrl_plugin_chat.preamble import Wording
from toolrl_plugin_chat.template import TemplateFormat
from toolrl_plugin_tir.markers import MarkedTool, marked_by_name
from toolrl_plugin_tir.options import TirFormatOptions, TorlOptions
from toolrl_plugin_tir.wording import as_text, plain, preamble, results_text


class TirFormat(TemplateFormat):
    """The tokenizer's chat template, with a preamble of its own on tools."""

    def __init__(self, options: TirFormatOptions | None, context: BuildContext) -> None:
        options = options or TirFormatOptions()
        shared = options.model_dump(include=set(SourceOptions.model_fields))
        template = TemplateOptions(**shared, preamble="always")
        self._place = context.where or "chat_format"
        self._marked: dict[str, MarkedTool] = {}
        """By name, all tools that prompts described; those of one environment have one form each."""
        wording = Wording(
            preamble=lambda specs: preamble(specs, options.preamble_text),
            with_calls=lambda content, calls: as_text(content, calls, self._marked),
            results=results_text,
        )
        super().__init__(template, context, wording)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn. Raises ChatFormatError."""
        self._marked.update(marked_by_name(tools, self._place))
        return super().open(messages, tools)

    def say(self, message: Message) -> tuple[int, ...]:
        """What a model would sample to say `message`, end mark included."""
        return super().say(plain(message, self._marked))

    def check(self, tools: Sequence[ToolSpec]) -> list[str]:
        """Try the format before a run; the template itself gets no tools."""
        return super().check(())


class TorlFormat(PlainFormat):
    """ToRL's prompt."""

    def __init__(self, options: TorlOptions | None, context: BuildContext) -> None:
        options = options or TorlOptions()
        layout = PlainOptions(
            system_suffix="\n",
            user_prefix=f"User: {options.instruction}\n" if options.instruction else "User: ",
            user_suffix="\n",
            assistant_prefix="Assistant:",
            assistant_suffix="\n",
            tool_prefix="",
            tool_suffix="\n",
            turn_end=options.turn_end,
            add_bos=options.add_bos,
            preamble=False,
        )
        super().__init__(layout, context)
        self._introduction = options.introduction
        self._place = context.where or "chat_format"
        self._marked: dict[str, MarkedTool] = {}

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The prompt of the first turn. Raises ChatFormatError."""
        self._marked.update(marked_by_name(tools, self._place))
        introduced = bool(messages) and messages[0].role == "system"
        first = () if introduced or not self._introduction else (Message("system", self._introduction),)
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        rendered = super().open([*first, *map(self._plain, messages[: turns[0]] if turns else messages)], ())
        ids = rendered.ids
        for index, following in pairwise([*turns, len(messages)]):
            # Earlier turns of the model stand there as it would have sampled them, end marks included.
            said = self.say(messages[index])
            rendered = self.bridge(said, messages[index + 1 : following], ())
            ids = (*ids, *said, *rendered.ids)
        return Rendered(ids, in_thinking=rendered.in_thinking)

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """What follows a sampled turn."""
        return super().bridge(sampled_ids, list(map(self._plain, messages)), ())

    def say(self, message: Message) -> tuple[int, ...]:
        """What a model would sample to say `message`, end mark included."""
        return super().say(self._plain(message))

    def _plain(self, message: Message) -> Message:
        return plain(message, self._marked)
