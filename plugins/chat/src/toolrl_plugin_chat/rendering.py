"""A tokenizer's chat template as a function from message dicts to text.

The text, and not the template's ids, is what the format works with: it looks for where a turn ends in it, and encodes
the parts. Encoding it without added special tokens is what `apply_chat_template(tokenize=True)` does with the same
text.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import Media, Message, ToolCall
from toolrl_plugin_chat.media import parts as typed_parts
from toolrl_plugin_chat.options import NO_TEMPLATE
from toolrl_plugin_chat.thinking import THINK, ThinkingMarks

_NINE = re.compile(r"[A-Za-z0-9]{9}\Z")

Dict = dict[str, Any]
NAMELESS = "tool"
"""The tool of a result that has no name, because its call couldn't be read."""


class Renderer:
    """Renders with one tokenizer, one template and one set of template variables."""

    def __init__(self, tokenizer: Any, chat_template: str | None, variables: Mapping[str, Any], where: str) -> None:
        self._tokenizer = tokenizer
        self._template = _read_template(chat_template, where)
        self._variables = dict(variables)
        self._where = where
        self._tools: Sequence[Dict] = ()
        if self._template is None and not getattr(tokenizer, "chat_template", None):
            raise ChatFormatError(
                "the model's tokenizer has no chat template",
                where=where,
                hint=NO_TEMPLATE,
            )

    def with_tools(self, tools: Sequence[Dict]) -> Renderer:
        """One that renders with these tools if none are given."""
        other = copy.copy(self)
        other._tools = tools
        return other

    @property
    def source(self) -> str:
        """The template's source; of several named ones all."""
        source = self._template if self._template is not None else self._tokenizer.chat_template
        return "\n".join(source.values()) if isinstance(source, Mapping) else str(source)

    def unused_variables(self) -> list[str]:
        """The variables that the template doesn't name."""
        return [name for name in self._variables if not re.search(rf"\b{re.escape(name)}\b", self.source)]

    def __call__(
        self, messages: Sequence[Dict], tools: Sequence[Dict] | None = None, *, generation_prompt: bool = False
    ) -> str:
        """The rendered text. Raises ChatFormatError where the template refuses the messages."""
        tools = tools or self._tools
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                # Some templates tell an empty list from none, and write a heading with nothing under it.
                tools=list(tools) if tools else None,
                chat_template=self._template,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._variables,
            )
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ChatFormatError(
                f"the chat template refuses a conversation of {roles}: {error}",
                where=self._where,
                hint="Change the conversation, or give a template that takes it: `chat_template: FILE.jinja`.",
            ) from error
        return str(text)

    def attempt(
        self, messages: Sequence[Dict], tools: Sequence[Dict] | None = None, *, generation_prompt: bool = False
    ) -> str | None:
        """The same, or None where the template refuses."""
        try:
            return self(messages, tools, generation_prompt=generation_prompt)
        except ChatFormatError:
            return None


def _read_template(value: str | None, where: str) -> str | None:
    if value is None or "{%" in value or "{{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ChatFormatError(
            f"chat_template {value!r} can't be read: {error.strerror}",
            where=where,
            hint="Give a path to a Jinja file, or the template itself.",
        ) from error


@dataclass(frozen=True, slots=True)
class Shape:
    """How this template wants a message's parts."""

    json_arguments: bool = False
    """Arguments as a JSON string, else as a mapping."""
    empty_content: str | None = ""
    """The content of an assistant message that has calls only; None leaves it out."""
    reasoning_key: str | None = None
    """The key of an assistant's reasoning; None where the template knows none and it stands in the content."""
    thinking: ThinkingMarks = THINK
    """The marks around reasoning that stands in the content."""
    short_ids: bool = False
    """Ids of calls must be nine letters and digits, as Mistral's templates insist on."""
    parts: bool = False
    """Contents as lists of typed parts, as templates of vision models want them, else as strings."""

    def text(self, role: str, content: str, media: Sequence[Media] = ()) -> Dict:
        """A message of text, and of images where it has some."""
        if media:
            return {"role": role, "content": typed_parts(content, media)}
        return {"role": role, "content": [{"type": "text", "text": content}] if self.parts else content}

    def assistant(self, content: str, calls: Sequence[ToolCall] = (), reasoning: str | None = None) -> Dict:
        """An assistant message."""
        if reasoning is not None and self.reasoning_key is None:
            content = self.thinking.block(reasoning) + content
        message = self.text("assistant", content)
        if reasoning is not None and self.reasoning_key is not None:
            message[self.reasoning_key] = reasoning
        if calls:
            if not content:
                message["content"] = self.empty_content
            message["tool_calls"] = [self._call(call, index) for index, call in enumerate(calls)]
        return message

    def result(self, message: Message, index: int) -> Dict:
        """A message of role tool."""
        given = self.text("tool", message.content, message.media)
        given["tool_call_id"] = self.id_of(message.tool_call_id, index)
        given["name"] = message.name or NAMELESS
        return given

    def _call(self, call: ToolCall, index: int) -> Dict:
        arguments: Any = dict(call.arguments)
        if self.json_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        return {"id": self.id_of(call.id, index), "type": "function", "function": function}

    def id_of(self, given: str | None, index: int) -> str:
        """The id that the template gets for a call or its result."""
        if not given:
            return call_id(index)
        if not self.short_ids or _NINE.match(given):
            return given
        return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


def call_id(index: int) -> str:
    """An id for a call that has none: nine letters and digits."""
    return f"call{index:05d}"
