"""The components that a config names: where they stand, what kind each is, whether their options fit.

Sites are found in the config as written, not in the checked one, so that the options of what can be found are checked
also where another section is wrong.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ValidationError

from toolrl import protocols
from toolrl.component import Component
from toolrl.config.frame import ComponentUse
from toolrl.config.model import Config, EnvironmentConfig
from toolrl.config.paths import Path, format_path
from toolrl.config.problems import UNKNOWN_KEY, Problem, Shown, find_problems, show_value
from toolrl.errors import ComponentLoadError, ConfigError, PluginError, ToolrlError
from toolrl.plugins.info import KIND_LABELS
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext

POLICY = "toolrl.tools.policy:PolicyOptions"
END_FLAGS = "toolrl.parsing.flags:EndFlags"
FILES = dict.fromkeys((".jsonl", ".json", ".ndjson", ".csv", ".tsv"), "jsonl") | {".parquet": "parquet"}
"""Who reads a file, by its ending: for somebody who wrote it in the place of a data set's name."""
AS_TOOLSET = "toolrl.tools.toolset:as_toolset"

_PROTOCOLS: dict[str, type] = {
    "parsers": protocols.ToolParser,
    "rewards": protocols.Reward,
    "engines": protocols.RolloutEngine,
    "datasets": protocols.TaskSource,
    "advantages": protocols.AdvantageEstimator,
    "policy_losses": protocols.PolicyLoss,
    "chat_formats": protocols.ChatFormat,
    "commands": protocols.Command,
}
"""What a built component is checked against; tools and observers are checked where they are taken in."""
_INSTEAD: dict[str, type] = {"rewards": protocols.ScoresGroups}
"""What a component of the kind may follow in place of that."""


@dataclass(frozen=True)
class Site:
    """A place that names a component."""

    kind: str
    path: Path
    name: str
    options: Any = field(default_factory=dict)
    policy: Any = None
    rename: Any = None
    is_default: bool = False
    """True where the config doesn't name it and the frame's default stands."""


def sites(tree: dict[str, Any]) -> Iterator[Site]:
    """Every component that a config names or gets by default; what isn't in the form of one is left out."""
    data = _section(tree, "data")
    yield from _site("datasets", data, ("data", "train"))
    yield from _site("datasets", data, ("data", "eval"))
    for name, environment in _section(tree, "environments").items():
        if not isinstance(environment, dict):
            continue
        at: Path = ("environments", name)
        for kind, key in (("parsers", "parser"), ("chat_formats", "chat_format")):
            default = EnvironmentConfig.model_fields[key].get_default(call_default_factory=True)
            yield from _site(kind, environment, (*at, key), default)
        yield from _list("tools", environment, (*at, "tools"))
        yield from _list("rewards", environment, (*at, "rewards"))
    yield from _site("engines", tree, ("engine",), Config.model_fields["engine"].get_default(call_default_factory=True))
    algorithm = _section(tree, "algorithm")
    yield from _site("advantages", algorithm, ("algorithm", "advantage"))
    yield from _site("policy_losses", algorithm, ("algorithm", "policy_loss"))
    yield from _site("datasets", _section(tree, "sft"), ("sft", "data"))
    if "observers" in tree:
        yield from _list("observers", tree, ("observers",))
    else:
        for index, use in enumerate(Config.model_fields["observers"].get_default(call_default_factory=True)):
            yield Site("observers", ("observers", index), use.use, is_default=True)


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    value = tree.get(name)
    return value if isinstance(value, dict) else {}


def _site(kind: str, parent: dict[str, Any], path: Path, default: ComponentUse | None = None) -> Iterator[Site]:
    value = parent.get(str(path[-1]), default)
    if value is default:
        if default is not None:
            yield Site(kind, path, default.use, is_default=True)
        return
    yield from _one(kind, value, path)


def _list(kind: str, parent: dict[str, Any], path: Path) -> Iterator[Site]:
    items = parent.get(str(path[-1]))
    for index, item in enumerate(items if isinstance(items, list) else []):
        yield from _one(kind, item, (*path, index))


def _one(kind: str, value: Any, path: Path) -> Iterator[Site]:
    if isinstance(value, str) and value:
        yield Site(kind, path, value)
    elif isinstance(value, dict) and isinstance(value.get("use"), str) and value["use"]:
        rename = value.get("as", value.get("rename"))
        yield Site(kind, path, value["use"], value.get("options", {}), value.get("policy"), rename)


def check_site(registry: Registry, site: Site, shown: Shown = show_value) -> list[Problem]:
    """What is wrong with one component's name, options and policy."""
    problems: list[Problem] = []
    try:
        found = registry.get(site.kind, site.name)
    except PluginError as error:
        reader = FILES.get(PurePath(site.name).suffix) if site.kind == "datasets" else None
        if reader is not None:
            use = f"{{use: {reader}, options: {{path: {site.name}}}}}"
            return [Problem(site.path, f"{site.name!r} is a file and no data set; to read it write `{use}`")]
        default = " (the default)" if site.is_default else ""
        hint = f"; {error.hint[:1].lower()}{error.hint[1:]}" if error.hint else ""
        problems.append(Problem(site.path, f"{error.message}{default}{hint}"))
    else:
        try:
            _, wrong = check_options(found.component, site.options, base=(*site.path, "options"), shown=shown)
            problems.extend(wrong)
        except PluginError as error:
            problems.append(Problem(site.path, f"{error.message}; {error.hint}" if error.hint else error.message))
    if site.kind == "tools" and isinstance(site.policy, dict):
        model = late(POLICY)
        try:
            model.model_validate(site.policy)
        except ValidationError as error:
            problems += find_problems(error, model, site.policy, base=(*site.path, "policy"), shown=shown)
    return problems


def options_model(component: Component[Any]) -> type[BaseModel] | None:
    """The model of a component's options, None where it has none. Raises ComponentLoadError."""
    model = component.load_options()
    if model is None or (isinstance(model, type) and issubclass(model, BaseModel)):
        return model
    raise ComponentLoadError(
        f"component {component.name!r}: its options {component.options!r} are {model!r:.60}, not a pydantic model"
    )


def check_options(
    component: Component[Any], options: Any, *, base: Path = (), shown: Shown = show_value
) -> tuple[BaseModel | None, list[Problem]]:
    """Options as an instance of the component's model, or what is wrong with them.

    Raises ComponentLoadError where the model can't be imported or isn't one.
    """
    model = options_model(component)
    if not isinstance(options, dict):
        return None, []  # The frame says so.
    if model is None:
        return None, [Problem((*base, key), f"{UNKNOWN_KEY}; it takes no options", component.name) for key in options]
    try:
        return model.model_validate(options), []
    except ValidationError as error:
        return None, find_problems(error, model, options, base=base, component=component.name, shown=shown)


def find_duplicates(found: list[Site]) -> list[Problem]:
    """Components that stand twice in one list with the same options: a tool twice has two tools of one name, a reward
    twice counts double without saying so."""
    problems = []
    for index, site in enumerate(found):
        for earlier in found[:index]:
            same_list = earlier.path[:-1] == site.path[:-1] and isinstance(site.path[-1], int)
            if same_list and (earlier.name, earlier.options, earlier.rename) == (site.name, site.options, site.rename):
                message = f"{site.name!r} stands here and at {format_path(earlier.path)} with the same options"
                problems.append(Problem(site.path, f"{message}; take one out, or give them different options"))
                break
    return problems


def check_end_flags(tree: dict[str, Any]) -> list[Problem]:
    """What is wrong with the end flags of each environment."""
    problems = []
    for name, environment in _section(tree, "environments").items():
        flags = environment.get("end_flags") if isinstance(environment, dict) else None
        for index, flag in enumerate(flags if isinstance(flags, list) else []):
            if not isinstance(flag, str):
                continue  # The frame says so.
            try:
                late(END_FLAGS)([flag])
            except ConfigError as error:
                problems.append(Problem(("environments", name, "end_flags", index), "; ".join(error.problems)))
    return problems


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
    label = f"{KIND_LABELS[kind]} {use.use!r}"
    try:
        if kind == "tools":
            return late(AS_TOOLSET)(target, options, context)
        built = target(options, context)
    except ToolrlError:
        raise
    except Exception as error:
        raise ComponentLoadError(
            f"{label} can't be built: {type(error).__name__}: {error}", where=where or None
        ) from error
    _check_protocol(kind, label, built, where)
    return built


def _check_protocol(kind: str, label: str, built: Any, where: str) -> None:
    """Raises ComponentLoadError where the built object lacks a method of its kind."""
    protocol = _PROTOCOLS.get(kind)
    if protocol is None or isinstance(built, _INSTEAD.get(kind, ())):
        return
    wanted = [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name not in _MACHINERY]
    lacking = [name for name in wanted if not callable(getattr(built, name, None))]
    if lacking:
        raise ComponentLoadError(
            f"{label} gave a {type(built).__name__} without {', '.join(lacking)}",
            where=where or None,
            hint=f"It must follow toolrl.protocols.{protocol.__name__}.",
        )


_MACHINERY = ("__init__", "__subclasshook__")


def late(target: str) -> Any:
    """What stands in a layer above this one, by `module:attribute`, imported when it is needed."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
