"""What the history plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """What may stand under `environments.*.history`."""
    yield Component(
        "drop_tool_output",
        "toolrl_plugin_history.policies:DropToolOutput",
        summary="Replaces old tool results of a long history by a line.",
        options="toolrl_plugin_history.options:DropToolOutputOptions",
    )
    yield Component(
        "summarise",
        "toolrl_plugin_history.policies:Summarise",
        summary="Lets the model sum up a long history, and go on from its summary.",
        options="toolrl_plugin_history.options:SummariseOptions",
    )
    yield Component(
        "strip_thinking",
        "toolrl_plugin_history.policies:StripThinking",
        summary="Removes the thinking of earlier turns, as many chat templates do.",
        options="toolrl_plugin_history.options:StripThinkingOptions",
    )
