"""What the calculator plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Toolset


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The tool `calculator`."""
    yield Component(
        "calculator",
        "toolrl_plugin_calculator.tool:build",
        summary="Exact arithmetic on one expression.",
        options="toolrl_plugin_calculator.options:CalculatorOptions",
    )
