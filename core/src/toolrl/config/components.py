"""The components that a config names: their places, their kinds, and checks of their options.

Sites are found in the config as written, not in the checked one, so that the options of what can be found are checked
also where another section is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ValidationError

from toolrl.component import Component
from toolrl.config.frame import ComponentUse
from toolrl.config.model import Config
from toolrl.config.paths import Path
from toolrl.config.problems import UNKNOWN_KEY, Problem, Shown, find_problems, model_at, show_value
from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ComponentLoadError, PluginError
from toolrl.kinds import KINDS
from toolrl.plugins.registry import Registry

FILES = dict.fromkeys((".jsonl", ".json", ".ndjson", ".csv", ".tsv"), "jsonl") | {".parquet": "parquet"}
"""The data set that reads a file, by the file's ending: for the hint where a path stands in the place of a name."""


@dataclass(frozen=True)
class Site:
    """A place that names a component."""

    kind: str
    path: Path
    name: str
    options: Any = field(default_factory=dict)
    policy: Any = None
    is_default: bool = False
    """True where the config doesn't name it and the frame's default stands."""


def sites(tree: dict[str, Any]) -> Iterator[Site]:
    """Every component that a config names or gets by default; what isn't in the form of one is left out."""
    for kind in KINDS.values():
        for place in kind.places:
            *parents, key = place.removesuffix("[]").split(".")
            for at, section in config_sections(tree, parents):
                path = (*at, key)
                if key not in section:
                    yield from _defaults(kind.name, path)
                elif isinstance(section[key], list):
                    for index, item in enumerate(section[key]):
                        yield from _one(kind.name, item, (*path, index))
                elif not place.endswith("[]"):
                    yield from _one(kind.name, section[key], path)


def replaced_kinds(registry: Registry, engine: Any) -> Mapping[str, str]:
    """By kind, the component that stands in the place of the config's: `replaces` of an engine's options, see
    `ChatEngine`. Empty for other engines. `engine` is as a config has it, which may hold mistakes."""
    for site in _one("engines", engine, ("engine",)):
        try:
            model = options_model(registry.get("engines", site.name).component)
        except PluginError:
            continue  # Reported where options are checked.
        if model is not None and hasattr(model, "replaces") and isinstance(site.options, dict):
            return dict(model.model_construct(**site.options).replaces)
    return {}


def config_sections(tree: Any, keys: Sequence[str], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The sections at a place of the table of kinds, where `*` stands for any key; one that is left out is empty."""
    if not isinstance(tree, dict):
        return
    if not keys:
        yield path, tree
    elif keys[0] != "*":
        yield from config_sections(tree.get(keys[0], {}), keys[1:], (*path, keys[0]))
    else:
        for name, section in tree.items():
            yield from config_sections(section, keys[1:], (*path, name))


def _defaults(kind: str, path: Path) -> Iterator[Site]:
    """The components that the frame's defaults name where a config leaves a field out."""
    model = model_at(Config, path[:-1])
    default = model.model_fields[str(path[-1])].get_default(call_default_factory=True) if model else None
    if isinstance(default, ComponentUse):
        yield Site(kind, path, default.use, is_default=True)
    elif isinstance(default, list):
        for index, use in enumerate(default):
            yield Site(kind, (*path, index), use.use, is_default=True)


def _one(kind: str, value: Any, path: Path) -> Iterator[Site]:
    if isinstance(value, str) and value:
        yield Site(kind, path, value)
    elif isinstance(value, dict) and isinstance(value.get("use"), str) and value["use"]:
        yield Site(kind, path, value["use"], value.get("options", {}), value.get("policy"))


def component_fields(config: type[Config] = Config) -> Iterator[tuple[type[BaseModel], str, str]]:
    """The fields of a config that name a component: model, field and kind."""
    for kind in KINDS.values():
        for place in kind.places:
            *parents, key = place.removesuffix("[]").split(".")
            model = model_at(config, parents)
            assert model is not None, f"{kind.name}: the config has no section {'.'.join(parents)}"
            yield model, key, kind.name


def with_hint(error: PluginError, remark: str = "") -> str:
    """An error's message and hint in one sentence."""
    return f"{error.message}{remark}" + (f"; {error.hint[:1].lower()}{error.hint[1:]}" if error.hint else "")


def check_site(registry: Registry, site: Site, shown: Shown = show_value) -> list[Problem]:
    """The problems of one component's name, options and policy."""
    problems: list[Problem] = []
    try:
        found = registry.get(site.kind, site.name)
    except PluginError as error:
        reader = FILES.get(PurePath(site.name).suffix) if site.kind == "datasets" else None
        if reader is not None:
            use = f"{{use: {reader}, options: {{path: {site.name}}}}}"
            return [Problem(site.path, f"{site.name!r} is a file and no data set; to read it write `{use}`")]
        problems.append(Problem(site.path, with_hint(error, " (the default)" if site.is_default else "")))
    else:
        try:
            _, wrong = check_options(found.component, site.options, base=(*site.path, "options"), shown=shown)
            problems.extend(wrong)
            scores = getattr(options_model(found.component), "scores_tokens", False)
            if site.path[0] == "algorithm" and site.kind == "engines" and not scores:
                problems.append(Problem(site.path, f"{site.name!r} can't be a teacher: it scores no given tokens"))
        except PluginError as error:
            problems.append(Problem(site.path, with_hint(error)))
    if site.kind == "tools" and isinstance(site.policy, dict):
        try:
            PolicyOptions.model_validate(site.policy)
        except ValidationError as error:
            problems += find_problems(error, PolicyOptions, site.policy, base=(*site.path, "policy"), shown=shown)
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
        return None, []  # The frame reports it.
    if model is None:
        return None, [Problem((*base, key), f"{UNKNOWN_KEY}; it takes no options", component.name) for key in options]
    try:
        return model.model_validate(options), []
    except ValidationError as error:
        return None, find_problems(error, model, options, base=base, component=component.name, shown=shown)
