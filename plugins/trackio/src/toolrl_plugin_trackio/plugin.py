"""What the plugin `trackio` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Observer


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """The tracker."""
    yield Component(
        "trackio",
        "toolrl_plugin_trackio.observer:TrackioObserver",
        summary="Metrics, config and sample episodes in Trackio.",
        options="toolrl_plugin_trackio.options:TrackioOptions",
    )
