"""What the plugin `start` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Harness, Reward, TaskSource, ToolParser, Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """Python of the user's own as a tool, without a package."""
    yield Component(
        "function",
        "toolrl_plugin_start.functions:build_tool",
        summary="A tool of your own: a Python function, by file and name.",
        options="toolrl_plugin_start.functions:FunctionToolOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """Python of the user's own as a reward."""
    yield Component(
        "function",
        "toolrl_plugin_start.functions:build_reward",
        summary="A reward of your own: a Python function of an episode, by file and name.",
        options="toolrl_plugin_start.functions:FunctionRewardOptions",
    )


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """Python of the user's own as a data set."""
    yield Component(
        "function",
        "toolrl_plugin_start.functions:build_dataset",
        summary="Rows of your own: a Python list, or a function that gives them, by file and name.",
        options="toolrl_plugin_start.functions:FunctionDataOptions",
    )


@hookimpl
def toolrl_parsers() -> Iterator[Component[ToolParser]]:
    """Python of the user's own as a parser."""
    yield Component(
        "function",
        "toolrl_plugin_start.functions:build_object",
        summary="A parser of your own: a Python class, by file and name.",
        options="toolrl_plugin_start.functions:FunctionOptions",
    )


@hookimpl
def toolrl_harnesses() -> Iterator[Component[Harness]]:
    """Python of the user's own as a harness."""
    yield Component(
        "function",
        "toolrl_plugin_start.functions:build_object",
        summary="A harness of your own: a Python class, by file and name.",
        options="toolrl_plugin_start.functions:FunctionOptions",
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
