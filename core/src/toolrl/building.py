"""Builds a component that a config names, and checks that it follows the protocol of its kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from toolrl import protocols
from toolrl.config.components import check_options
from toolrl.config.frame import ComponentUse
from toolrl.errors import ComponentLoadError, ConfigError, ToolrlError, UnknownComponentError
from toolrl.kinds import KINDS
from toolrl.plugins.registry import Registry, load_registry
from toolrl.protocols import BuildContext
from toolrl.tools.toolset import as_toolset

_MACHINERY = ("__init__", "__subclasshook__")


def build_component(registry: Registry, kind: str, use: ComponentUse, context: BuildContext, where: str) -> Any:
    """Resolve a component, check its options, and call its target with them and the context.

    `where` is its place in the config, for messages. Raises PluginError for one that can't be had or built, ConfigError
    for options that don't fit; another ToolrlError of the component's own goes through.
    """
    component = registry.get(kind, use.use).component
    options, problems = check_options(component, use.options)
    if problems:
        raise ConfigError([problem.line(f"{where}.options" if where else "options") for problem in problems])
    target = component.load()
    label = f"{KINDS[kind].label} {use.use!r}"
    try:
        if kind == "tools":
            return as_toolset(target, options, context)
        built = target(options, context)
    except ToolrlError:
        raise
    except Exception as error:
        raise ComponentLoadError(
            f"{label} can't be built: {type(error).__name__}: {error}", where=where or None
        ) from error
    _check_protocol(kind, label, built, where)
    return built


def build_of_plugin(
    kind: str,
    name: str,
    options: dict[str, Any],
    context: BuildContext,
    where: str,
    missing: Callable[[str], ToolrlError],
) -> Any:
    """A component of another plugin, by its qualified name.

    `missing` makes the error for one that isn't there, from what the registry says of it.
    """
    registry = load_registry()
    try:
        registry.get(kind, name)
    except UnknownComponentError as error:
        raise missing(error.message) from None
    return build_component(registry, kind, ComponentUse(use=name, options=options), context, where)


def _check_protocol(kind: str, label: str, built: Any, where: str) -> None:
    """Raises ComponentLoadError where the built object lacks a method of its kind."""
    missing = {name: _missing(built, getattr(protocols, name)) for name in KINDS[kind].protocols}
    if all(missing.values()):
        protocol, methods = next(iter(missing.items()))
        raise ComponentLoadError(
            f"{label} gave a {type(built).__name__} without {', '.join(methods)}",
            where=where or None,
            hint=f"It must follow toolrl.protocols.{protocol}.",
        )


def _missing(built: Any, protocol: type) -> list[str]:
    """The methods of a protocol that an object lacks."""
    wanted = [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name not in _MACHINERY]
    return [name for name in wanted if not callable(getattr(built, name, None))]


_MACHINERY = ("__init__", "__subclasshook__")
