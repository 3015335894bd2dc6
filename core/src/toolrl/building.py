"""Builds a component that a config names, and checks that it follows the protocol of its kind."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from toolrl import protocols
from toolrl.component import Component
from toolrl.config.components import check_options, replaced_kinds
from toolrl.config.frame import ComponentUse
from toolrl.config.model import Config
from toolrl.errors import ComponentLoadError, ConfigError, PluginError, ToolrlError
from toolrl.kinds import KINDS
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext, TrainerBackend
from toolrl.tools.toolset import as_toolset

_MACHINERY = ("__init__", "__subclasshook__")


def build_component(registry: Registry, kind: str, use: ComponentUse, context: BuildContext, where: str) -> Any:
    """Resolve a component, check its options, and call its target with them and the context.

    `where` is its place in the config, for messages. Raises PluginError for a component that is missing or can't be
    built, ConfigError for options that don't fit; another ToolrlError of the component's own goes through.
    """
    component = registry.get(kind, use.use).component
    options, problems = check_options(component, use.options)
    if problems:
        raise ConfigError([problem.line(f"{where}.options" if where else "options") for problem in problems])
    return call_target(kind, use.use, component, options, context, where)


def call_target(
    kind: str, name: str, component: Component[Any], options: Any, context: BuildContext, where: str
) -> Any:
    """Call a component's target with checked options, and check that the result follows the protocol of its kind.
    Raises as `build_component`."""
    target = component.load()
    label = f"{KINDS[kind].label} {name!r}"
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


def trainer_component(registry: Registry, name: str = "torch") -> Component[TrainerBackend]:
    """A trainer's descriptor. Raises ConfigError where no installed plugin brings it."""
    try:
        component: Component[TrainerBackend] = registry.get("trainers", name).component
        component.load()
    except PluginError as error:
        hint = error.hint
        if name == "torch":
            hint = (
                "pip install 'toolrl[train]'; to evaluate a model behind an API without it, take toolrl-plugin-api and "
                "`engine: {use: chat, options: {base_url: …, model: …}}`"
            )
        raise ConfigError(f"trainer.use: {error.message}", hint=hint) from error
    return component


def build_trainer(registry: Registry, config: Config) -> TrainerBackend:
    """The config's trainer. Raises ConfigError where no installed plugin brings it, ComponentLoadError where it can't
    be built."""
    name = config.trainer.use
    context = BuildContext(name=name, where="trainer", seed=config.seed)
    backend: TrainerBackend = call_target(
        "trainers", name, trainer_component(registry, name), config, context, "trainer"
    )
    return backend


def check_trainable(registry: Registry, config: Config) -> None:
    """Raises ConfigError where the engine's model can be evaluated only."""
    if "trainers" in replaced_kinds(registry, config.engine.model_dump()):
        raise ConfigError(
            f"engine.use: {config.engine.use!r} asks an API, which gives neither tokens nor log-probabilities, so its "
            "model can't be trained",
            hint="Evaluate it by `toolrl eval`. To train, take an engine that samples tokens, such as `vllm`.",
        )


def engine_options(registry: Registry, config: Config) -> Any:
    """The engine's checked options."""
    return check_options(registry.get("engines", config.engine.use).component, config.engine.options)[0]


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
    methods = (FunctionType, staticmethod)
    wanted = [name for name, it in vars(protocol).items() if isinstance(it, methods) and name not in _MACHINERY]
    return [name for name in wanted if not callable(getattr(built, name, None))]
