"""What the plugin `start` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The commands of this plugin."""
    yield Component(
        "doctor",
        "toolrl_plugin_start.doctor:DoctorCommand",
        summary="check that what is installed works here",
    )
