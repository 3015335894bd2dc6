"""What the OpenEnv plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The toolsets `openenv` and `gymnasium`."""
    yield Component(
        "openenv",
        "toolrl_plugin_openenv.toolset:build",
        summary="An OpenEnv server's environment: its tools or its text, one session an episode.",
        options="toolrl_plugin_openenv.options:OpenEnvOptions",
        check="toolrl_plugin_openenv.toolset:check",
    )
    yield Component(
        "gymnasium",
        "toolrl_plugin_openenv.gym_toolset:build",
        summary="A Gymnasium environment with text observations.",
        options="toolrl_plugin_openenv.options:GymnasiumOptions",
        check="toolrl_plugin_openenv.gym_toolset:check",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl openenv show`."""
    yield Component(
        "show",
        "toolrl_plugin_openenv.commands:Show",
        summary="What an OpenEnv server offers: tools, actions, its first observation.",
    )
