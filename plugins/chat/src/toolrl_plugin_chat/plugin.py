"""What the plugin `chat` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import ChatFormat


@hookimpl
def toolrl_chat_formats() -> Iterator[Component[ChatFormat]]:
    """Chat formats that need nothing but a tokenizer."""
    yield Component(
        "template",
        "toolrl_plugin_chat.template:TemplateFormat",
        summary="The tokenizer's own chat template, extended turn by turn.",
        options="toolrl_plugin_chat.options:TemplateOptions",
    )
    yield Component(
        "plain",
        "toolrl_plugin_chat.plain:PlainFormat",
        summary="Plain text for base models without a chat template.",
        options="toolrl_plugin_chat.options:PlainOptions",
    )
