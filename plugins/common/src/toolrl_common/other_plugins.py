"""Building a component of another plugin, which may not be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolrl import Component
from toolrl.building import build_component
from toolrl.config.components import check_options
from toolrl.config.frame import ComponentUse
from toolrl.errors import ConfigError, ToolrlError, UnknownComponentError
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext


def build_of_plugin(
    kind: str,
    name: str,
    options: dict[str, Any],
    context: BuildContext,
    where: str,
    missing: Callable[[str], ToolrlError],
) -> Any:
    """A component of another plugin, by its qualified name. `missing` turns the registry's message into the error for a
    component that isn't installed."""
    _component(kind, name, missing)
    return build_component(load_registry(), kind, ComponentUse(use=name, options=options), context, where)


def options_of_plugin(kind: str, name: str, options: dict[str, Any], missing: Callable[[str], ToolrlError]) -> Any:
    """The options of such a component as its own model, to be asked before anything is built. Raises ConfigError."""
    model, problems = check_options(_component(kind, name, missing), options)
    if problems:
        raise ConfigError([problem.line("options") for problem in problems], where=name)
    return model


def _component(kind: str, name: str, missing: Callable[[str], ToolrlError]) -> Component[Any]:
    try:
        return load_registry().get(kind, name).component
    except UnknownComponentError as error:
        raise missing(error.message) from None
