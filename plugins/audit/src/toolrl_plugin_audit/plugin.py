"""What the plugin `audit` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl audit`."""
    yield Component(
        "audit",
        "toolrl_plugin_audit.command:AuditCommand",
        summary="find faults in the rollouts of a run of toolrl, verl, TRL or prime-rl",
    )
