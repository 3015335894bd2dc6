"""What the renderers plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl import Component, hookimpl


@hookimpl
def toolrl_chat_formats() -> Iterator[Component[Any]]:
    """The chat format `renderers`."""
    yield Component(
        "renderers",
        "toolrl_plugin_renderers.chat:RenderersFormat",
        summary="Some thirty model families, rendered by the library `renderers` token for token.",
        options="toolrl_plugin_renderers.options:RenderersFormatOptions",
        check="toolrl_plugin_renderers.library:check",
    )


@hookimpl
def toolrl_parsers() -> Iterator[Component[Any]]:
    """The parser `renderers`."""
    yield Component(
        "renderers",
        "toolrl_plugin_renderers.parser:RenderersParser",
        summary="Tool calls of some thirty model families, read from token ids by the library `renderers`.",
        options="toolrl_plugin_renderers.options:RenderersParserOptions",
        check="toolrl_plugin_renderers.library:check",
    )
