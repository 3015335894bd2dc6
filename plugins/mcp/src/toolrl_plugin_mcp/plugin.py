"""What the MCP plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The toolset `mcp`."""
    yield Component(
        "mcp",
        "toolrl_plugin_mcp.toolset:build",
        summary="The tools of MCP servers, over stdio, streamable HTTP or SSE.",
        options="toolrl_plugin_mcp.options:McpOptions",
        check="toolrl_plugin_mcp.toolset:check",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The commands `toolrl mcp tools` and `toolrl mcp call`."""
    yield Component(
        "tools",
        "toolrl_plugin_mcp.commands:Tools",
        summary="The tools of the MCP servers that a file names.",
    )
    yield Component(
        "call",
        "toolrl_plugin_mcp.commands:Call",
        summary="What a tool of these servers answers.",
    )
