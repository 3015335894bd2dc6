"""What the plugin `parse` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl parse`."""
    yield Component(
        "parse",
        "toolrl_plugin_parse.command:ParseCommand",
        summary="show what a parser makes of a text",
    )
