"""Registers the engine `transformers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import RolloutEngine


@hookimpl
def toolrl_engines() -> Iterable[Component[RolloutEngine]]:
    """The embedded engine."""
    yield Component(
        "transformers",
        "toolrl_plugin_transformers.engine:TransformersEngine",
        summary="In-process engine on the trainer's own weights, with continuous batching.",
        options="toolrl_plugin_transformers.options:TransformersEngineOptions",
    )
