"""What the plugin `start` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """Python of the user's own as a tool, without a package."""
    yield Component(
        "function",
        "toolrl_plugin_start.function_tool:build",
        summary="A tool of your own: a Python function, by file and name.",
        options="toolrl_plugin_start.function_tool:FunctionToolOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The commands of this plugin."""
    yield Component(
        "doctor",
        "toolrl_plugin_start.doctor:DoctorCommand",
        summary="check that what is installed works here",
    )
    yield Component(
        "init",
        "toolrl_plugin_start.init:InitCommand",
        summary="write a config that runs, for a model, data and tools",
    )
    yield Component(
        "runs",
        "toolrl_plugin_start.runs:RunsCommand",
        summary="list runs, or compare some: configs and metrics side by side",
    )
    yield Component(
        "completion",
        "toolrl_plugin_start.completion:CompletionCommand",
        summary="print a script that completes commands in bash, zsh or fish",
    )
