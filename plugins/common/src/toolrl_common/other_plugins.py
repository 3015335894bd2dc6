"""Building a component of another plugin, which may not be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.errors import ToolrlError, UnknownComponentError
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext


def build_of_plugin(
    kind: str,
    name: str,
    options: dict[str, Any],
    context: BuildContext,
    where: str,
    missing: Callable[[str], ToolrlError] | None = None,
) -> Any:
    """A component of another plugin, by its name. `missing` turns the registry's message into the error for a component
    that isn't installed; without it that of the registry is raised."""
    registry = load_registry()
    try:
        registry.get(kind, name)
    except UnknownComponentError as error:
        if missing is None:
            raise
        raise missing(error.message) from None
    return build_component(registry, kind, ComponentUse(use=name, options=options), context, where)
