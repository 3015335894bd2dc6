"""What the gateway plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Harness

_PACKAGE = "toolrl_plugin_gateway"


@hookimpl
def toolrl_harnesses() -> Iterator[Component[Harness]]:
    """The harnesses `python` and `command`."""
    yield Component(
        "python",
        f"{_PACKAGE}.python_harness:PythonHarness",
        summary="A Python function plays the episodes with the SDK of its choice.",
        options=f"{_PACKAGE}.options:PythonOptions",
    )
    yield Component(
        "command",
        f"{_PACKAGE}.command_harness:CommandHarness",
        summary="A command plays the episodes, each in a process of its own.",
        options=f"{_PACKAGE}.options:CommandOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl gateway serve`."""
    yield Component(
        "serve",
        f"{_PACKAGE}.serve:Serve",
        summary="A model behind an API, for agents that run elsewhere; episodes are scored.",
    )
