"""What the plugin `report` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Observer


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """The observer that writes a run's page at its end."""
    yield Component(
        "report",
        "toolrl_plugin_report.observer:ReportObserver",
        summary="Writes report.html when a run ends; every run has it.",
        every_run=True,
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl report`."""
    yield Component(
        "report",
        "toolrl_plugin_report.command:ReportCommand",
        summary="write the report of a run",
    )
