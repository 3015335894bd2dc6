"""What the plugin `report` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Observer


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """Observers that write what a run did for other programs: a browser, TensorBoard."""
    yield Component(
        "report",
        "toolrl_plugin_report.observers:ReportObserver",
        summary="Writes report.html when a run ends, and an index of its episodes; every run has it.",
        every_run=True,
    )
    yield Component(
        "tensorboard",
        "toolrl_plugin_report.observers:TensorboardObserver",
        summary="Scalars for TensorBoard.",
        options="toolrl_plugin_report.observers:TensorboardOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl report`."""
    yield Component(
        "report",
        "toolrl_plugin_report.command:ReportCommand",
        summary="write the report of a run, or serve it with all episodes",
    )
