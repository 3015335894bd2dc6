"""What the plugin `wandb` registers."""

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
        "wandb",
        "toolrl_plugin_wandb.observer:WandbObserver",
        summary="Metrics, config and sample episodes in Weights & Biases.",
        options="toolrl_plugin_wandb.options:WandbOptions",
    )
