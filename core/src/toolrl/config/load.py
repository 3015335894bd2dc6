"""Reads, completes and checks a run's config.

Read the YAML, put in `--set` values, then the environment's variables; then two passes: the frame, and each component's
options by its plugin's own model. All mistakes of all passes are reported together, each with its place in the YAML.
Paths in a config (`model.path`, a data file, `run.dir`) are relative to the current directory, as on a command line.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from toolrl.config.components import check_site, options_model, replaced_kinds, sites
from toolrl.config.env import Interpolated, interpolate
from toolrl.config.frame import ComponentUse
from toolrl.config.model import Config, EnvironmentConfig
from toolrl.config.override import apply_overrides
from toolrl.config.paths import Path, format_path, get, step
from toolrl.config.problems import UNKNOWN_KEY, Problem, find_problems, model_at, show_value
from toolrl.config.read import read_config, unaliased
from toolrl.config.sections import as_config, whole_config
from toolrl.errors import ConfigError, PluginError
from toolrl.plugins.registry import Registry, load_registry


@dataclass(frozen=True)
class LoadedConfig:
    """A config without mistakes."""

    config: Config = field(repr=False)
    """With the values of environment variables: not for printing."""
    resolved: dict[str, Any]
    """Every value, defaults included, as plain data. Where the file holds `${NAME}`, so does this."""
    source: str
    """The file it was read from."""
    hide: Callable[[str], str] = field(default=str, repr=False)
    """A text without the values of environment variables: for whatever is written or printed."""


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    registry: Registry | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read and check a config file. `overrides` are `PATH=VALUE` texts.

    Raises ConfigError, whose `problems` lists every mistake. Nothing is built or started.
    """
    source = os.fspath(path)
    tree, problems = read_config(source)
    return check_config(tree, overrides, source=source, registry=registry, environ=environ, problems=problems)


def check_config(
    tree: dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    source: str = "config",
    registry: Registry | None = None,
    environ: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> LoadedConfig:
    """Check a config that is already a tree of plain data; `problems` are those found on the way to it."""
    registry = load_registry() if registry is None else registry
    tree = unaliased(tree)
    set_paths, wrong = apply_overrides(tree, overrides)
    _name_defaults(tree, set_paths)
    _name_run(tree, source)
    _replace_for_engine(tree, registry)
    old_keys = _rename_old_keys(tree, whole_config(registry, tree)[0], registry)
    values = interpolate(tree, os.environ if environ is None else environ)
    config, found = _check(values, registry)
    lines = [*problems, *wrong, *(_line(problem, values, set_paths) for problem in found)]
    if lines or config is None:
        raise ConfigError(lines, where=source)
    config._old_keys = tuple(old_keys)
    return LoadedConfig(config, _resolved(config, values), source, values.mask)


def _check(values: Interpolated, registry: Registry) -> tuple[Config | None, list[Problem]]:
    """Both passes: the config where its frame is right, and all problems."""

    def shown(path: Path, value: Any) -> str | None:
        return show_value(path, values.texts.get(path, value))

    problems = [Problem(path, message) for path, message in values.missing.items()]
    config = None
    model, wrong = whole_config(registry, values.tree)
    try:
        config = as_config(model.model_validate(values.tree))
    except ValidationError as error:
        problems += find_problems(error, model, values.tree, shown=shown)
    problems += wrong
    for site in sites(values.tree):
        if not {site.path, (*site.path, "use")} & values.missing.keys():
            problems += check_site(registry, site, shown)
    # Where a variable is missing, nothing can be said of the value; only the key itself can still be wrong.
    named = len(values.missing)
    return config, problems[:named] + [
        problem
        for problem in problems[named:]
        if problem.path not in values.missing or problem.message.startswith(UNKNOWN_KEY)
    ]


def _line(problem: Problem, values: Interpolated, set_paths: Sequence[Path]) -> str:
    line = values.mask(problem.line())
    return f"{line} (by --set)" if any(problem.path[: len(path)] == path for path in set_paths) else line


def _name_defaults(tree: dict[str, Any], set_paths: Sequence[Path]) -> None:
    """`--set engine.options.x=1` where the file names no engine means the default engine's option."""
    for path in set_paths:
        for length, model in ((1, Config), (3, EnvironmentConfig)):
            at = path[:length]
            parent = get(tree, at[:-1])
            if len(path) <= length or (length == 3 and path[0] != "environments") or not isinstance(parent, dict):
                continue
            field = model.model_fields.get(str(at[-1]))
            default = field.get_default(call_default_factory=True) if field is not None else None
            if isinstance(default, ComponentUse) and isinstance(parent[at[-1]], dict):
                parent[at[-1]].setdefault("use", default.use)


def _name_run(tree: dict[str, Any], source: str) -> None:
    """A run without a name is called like its config file, so that two configs don't write to one folder."""
    run = tree.setdefault("run", {})
    stem = pathlib.PurePath(source).stem
    if isinstance(run, dict) and stem:
        run.setdefault("name", stem)


def _replace_for_engine(tree: dict[str, Any], registry: Registry) -> None:
    """Where an API holds the model: components that need its tokens are replaced, and `model.path` is its name."""
    replaced = replaced_kinds(registry, tree.get("engine"))
    if not replaced:
        return
    use = {key: {"use": replaced[kind]} for kind, key in _OF_ENVIRONMENT.items() if kind in replaced}
    environments = tree.get("environments")
    for environment in environments.values() if isinstance(environments, dict) else ():
        if isinstance(environment, dict):
            environment |= use
    name = get(tree, ("engine", "options", "model")) or "unnamed"
    for section, key, value in (("trainer", "use", replaced["trainers"]), ("model", "path", name)):
        if isinstance(tree.setdefault(section, {}), dict):
            tree[section][key] = value


_OF_ENVIRONMENT = {"chat_formats": "chat_format", "parsers": "parser"}


def _resolved(config: Config, values: Interpolated) -> dict[str, Any]:
    """The config as plain data, with the text of the file wherever it held a variable."""
    tree: dict[str, Any] = config.model_dump(mode="json", by_alias=True)
    for path, text in values.texts.items():
        if not _restore(tree, path, text):
            # Its place has changed: mask its value everywhere.
            tree = _mapped(tree, values.mask)
    return tree


def _restore(tree: dict[str, Any], path: Path, text: str) -> bool:
    node: Any = get(tree, path[:-1])
    key = step(node, path[-1])
    if key is None:
        return False
    if isinstance(node[key], dict):  # A component's bare name became `{use: …}`.
        node, key = node[key], "use"
    node[key] = text
    return True


def _mapped(node: Any, function: Callable[[str], str]) -> Any:
    if isinstance(node, dict):
        return {key: _mapped(item, function) for key, item in node.items()}
    if isinstance(node, list):
        return [_mapped(item, function) for item in node]
    return function(node) if isinstance(node, str) else node


def _rename_old_keys(tree: dict[str, Any], config: type[BaseModel], registry: Registry) -> list[str]:
    """Renames the old keys of a config, and those of its components' options, in place. Returns the remarks."""
    lines = list(_renamed(tree, config))
    for site in sites(tree):
        try:
            model = options_model(registry.get(site.kind, site.name).component)
            lines += _renamed(site.options, model, (*site.path, "options"))
        except PluginError:
            continue  # Checking the component reports it.
    return lines


def _renamed(node: Any, model: type[BaseModel] | None, base: Path = (), path: Path = ()) -> Iterator[str]:
    if isinstance(node, dict):
        for old, new in getattr(model_at(model, path), "old_names", {}).items():
            renamed = isinstance(new, str)
            if old not in node or (new in node if renamed else new not in (None, node[old])):
                continue  # With both, or with a value that would have an effect, the old one is an unknown key.
            value = node.pop(old)
            if renamed:
                node[new] = value
            what = f"is called `{new}` now" if renamed else "has no effect any more; leave it out"
            yield f"{format_path((*base, *path, old))}: {what}"
    for key, item in list(
        node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ())
    ):
        yield from _renamed(item, model, base, (*path, key))
