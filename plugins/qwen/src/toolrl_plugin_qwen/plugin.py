"""What the qwen plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl import Component, hookimpl


@hookimpl
def toolrl_parsers() -> Iterator[Component[Any]]:
    """The parsers `hermes` and `qwen3_coder`."""
    yield Component(
        "hermes",
        "toolrl_plugin_qwen.hermes:HermesParser",
        summary="JSON in <tool_call> tags: Qwen2.5, Qwen3, Hermes and many others.",
        options="toolrl_plugin_qwen.options:QwenOptions",
        check="toolrl_plugin_qwen.hermes:check",
    )
    yield Component(
        "qwen3_coder",
        "toolrl_plugin_qwen.qwen3_coder:Qwen3CoderParser",
        summary="Function and parameter tags in <tool_call>: Qwen3-Coder, Qwen3.5.",
        options="toolrl_plugin_qwen.options:QwenOptions",
        check="toolrl_plugin_qwen.qwen3_coder:check",
    )
