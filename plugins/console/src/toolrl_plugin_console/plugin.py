"""What the plugin `console` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Observer


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """The observer that a config has by default."""
    yield Component(
        "console",
        "toolrl_plugin_console.observer:ConsoleObserver",
        summary="Progress, metrics and results; plain lines where there is no terminal.",
        options="toolrl_plugin_console.options:ConsoleOptions",
    )
