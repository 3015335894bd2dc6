"""Messages in the form that a template takes: its own where it has one, toolrl's where it hasn't.

Decided once: what describes the tools to the model, whether calls go into `tool_calls` or into the text, and whether
results are messages of role `tool` or stand in a user message.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolSpec
from toolrl_plugin_chat.abilities import Abilities
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.preamble import Wording, preamble, results_text, with_calls
from toolrl_plugin_chat.rendering import Dict

_MARKUP = "<tools></tools><tool_call></tool_call><tool_response></tool_response>"


class Conversation:
    """Turns messages into the dicts that a template is given."""

    def __init__(
        self, options: TemplateOptions, abilities: Abilities, where: str, wording: Wording | None = None
    ) -> None:
        """`wording` instead of the one that the options name."""
        self._wording = wording or _wording(options)
        self._where = where
        self.abilities = abilities
        native = (abilities.tools and abilities.calls) or abilities.needs_tools
        self.own_preamble = options.preamble == "always" or (options.preamble == "auto" and not native)
        """Tools are described by toolrl's preamble."""
        self.native_calls = abilities.calls and not self.own_preamble
        """Calls go into `tool_calls`."""
        takes_role = abilities.tool_role if self.native_calls else abilities.plain_tool_role
        if options.tool_role == "tool" and not takes_role:
            raise ChatFormatError(
                "tool_role is 'tool', and the chat template doesn't show messages of role tool",
                where=where,
                hint="Use `tool_role: auto` or `tool_role: user`.",
            )
        self.results_as_user = options.tool_role == "user" or (
            options.tool_role == "auto" and not (self.native_calls and takes_role)
        )
        """Results stand in a user message."""
        self.markup = "" if self.native_calls and not self.results_as_user else self._wording.markup
        """The tags that toolrl writes itself."""
        self.parallel = abilities.parallel or not self.native_calls
        """Whether one turn can hold several calls."""

    def native_tools(self, specs: Sequence[ToolSpec]) -> list[Dict] | None:
        """What the template gets as `tools=`."""
        return None if self.own_preamble or not specs else [spec.as_function() for spec in specs]

    def dicts(self, messages: Sequence[Message], specs: Sequence[ToolSpec] = ()) -> list[Dict]:
        """All messages, the preamble with them where toolrl writes it."""
        described = self._wording.preamble(specs) if self.own_preamble and specs else ""
        lead, messages = self._without_system(messages)
        result = self.plain_dicts(messages)
        first = messages[0] if messages else None
        shape = self.abilities.shape
        if first is not None and first.role == "system":
            result[0] = shape.text("system", f"{first.content}\n\n{described}" if described else first.content)
        elif described and self.abilities.system:
            result.insert(0, shape.text("system", described))
        elif first is not None and first.role == "user":
            content = "\n\n".join(part for part in (lead, described, first.content) if part)
            result[0] = shape.text("user", content, first.media)
        elif described:
            raise ChatFormatError(
                "the chat template shows no system message, and the conversation doesn't begin with the user's, so "
                "there is no place to tell the model of its tools",
                where=self._where,
                hint="Begin with a user message.",
            )
        return result

    def _without_system(self, messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
        """A system message that the template doesn't show and that can stand before the user's first words; the other
        messages."""
        roles = [message.role for message in messages[:2]]
        if self.abilities.system or roles != ["system", "user"]:
            return "", messages
        return messages[0].content, messages[1:]

    def plain_dicts(self, messages: Sequence[Message]) -> list[Dict]:
        """The messages without a preamble."""
        result: list[Dict] = []
        results: list[Message] = []
        for message in messages:
            if message.role == "tool" and self.results_as_user:
                results.append(message)
                continue
            if results:
                result.append(self._results(results))
                results = []
            result.append(self._dict(message, len(result)))
        if results:
            result.append(self._results(results))
        return result

    def _results(self, results: Sequence[Message]) -> Dict:
        media = [item for message in results for item in message.media]
        return self.abilities.shape.text("user", self._wording.results(results), media)

    def _dict(self, message: Message, index: int) -> Dict:
        shape = self.abilities.shape
        if message.role == "tool":
            return shape.result(message, index)
        if message.role != "assistant":
            return shape.text(message.role, message.content, message.media)
        if self.native_calls:
            return shape.assistant(message.content, message.tool_calls, message.reasoning)
        return shape.assistant(self._wording.with_calls(message.content, message.tool_calls), (), message.reasoning)


def _wording(options: TemplateOptions) -> Wording:
    """Qwen's, which the parser `hermes` reads."""
    return Wording(
        preamble=lambda specs: preamble(specs, options.preamble_style),
        with_calls=with_calls,
        results=results_text,
        markup=_MARKUP,
    )
