"""What the plugin `mlflow` registers."""

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
        "mlflow",
        "toolrl_plugin_mlflow.observer:MlflowObserver",
        summary="Metrics, config and sample episodes in MLflow.",
        options="toolrl_plugin_mlflow.options:MlflowOptions",
    )
