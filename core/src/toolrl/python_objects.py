"""Python objects in a config: wherever a file names a component, a dict may hold the component itself.

    tools       a function with type hints, with or without `@tool`, a `Tool` class, a toolset
    rewards     a function of an episode that returns a number, a `Score`, or whether the answer is correct; an object
                that follows `Reward`
    data        a list of dicts, a `datasets.Dataset`, a data frame or an Arrow table, a list of `Task`; a list of these
                mixes them, as does a list of dicts with `use`: {"use": rows, "share": 2.0}
    all others  an object that follows the protocol of its kind, or a class or factory `(options, context)`

The objects become components of a plugin `python-objects` that belongs to the run alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from toolrl.builtin.datasets import FileDataset, given_tasks
from toolrl.builtin.given_rows import check_not_splits, has_rows
from toolrl.builtin.options import FieldMapping, Options
from toolrl.builtin.rewards import FunctionReward, check_reward_function
from toolrl.component import Component
from toolrl.config.components import config_sections
from toolrl.errors import ConfigError
from toolrl.kinds import KINDS
from toolrl.plugins.info import PYTHON_OBJECTS, PluginInfo
from toolrl.plugins.registry import Registry
from toolrl.protocols import TaskSource
from toolrl.tools import tool
from toolrl.tools.callables import name_of
from toolrl.tools.toolset import is_tool_function

Components = dict[str, list[Component[Any]]]
"""By kind."""


@dataclass(frozen=True, slots=True)
class ObjectComponent(Component[Any]):
    """A component whose target is an object at hand."""

    value: Any = None

    def load(self) -> Any:
        return self.value


def take_objects(tree: Mapping[str, Any], registry: Registry) -> tuple[dict[str, Any], Registry]:
    """The config with a name in the place of each object, and a registry that knows these names. Changes neither
    argument. Raises ConfigError for an object that can't be a component of its kind."""
    copied: dict[str, Any] = _copied(tree)
    found: Components = {}
    for kind in KINDS.values():
        for place in kind.places:
            *parents, key = place.removesuffix("[]").split(".")
            for path, section in config_sections(copied, parents):
                if key not in section:
                    continue
                where = ".".join(map(str, (*path, key)))
                listed = isinstance(section[key], list | tuple)
                if listed and (place.endswith("[]") or _are_datasets(section[key], registry)):
                    items = enumerate(section[key])
                    section[key] = [_named(item, kind.name, f"{where}[{index}]", found) for index, item in items]
                else:
                    section[key] = _named(section[key], kind.name, where, found)
    if not found:
        return copied, registry
    others = [replace(it, components=_hidden(it.components, found)) for it in registry.plugins]
    return copied, Registry([*others, PluginInfo(PYTHON_OBJECTS, components=found)])


def _hidden(components: Components, by: Components) -> Components:
    """A plugin's components; one that an object has the name of is reached by `plugin/name` only."""
    names = {kind: {component.name for component in given} for kind, given in by.items()}
    return {
        kind: [replace(it, short=False) if it.name in names.get(kind, ()) else it for it in given]
        for kind, given in components.items()
    }


def _are_datasets(values: Sequence[Any], registry: Registry) -> bool:
    """Whether a list at the place of a data set is one of data sets and not of rows: its first item is a data set's
    name, a list, a data frame or the like, or a dict with `use` and without the `prompt` or `messages` of a row."""
    first = values[0] if values else {}
    if isinstance(first, Mapping):
        return "use" in first and not {"prompt", "messages"} & first.keys()
    return has_rows(first) or (isinstance(first, str) and first in registry.names("datasets"))


def _copied(node: Any) -> Any:
    """The same with dicts of its own; what isn't a dict or a list of components is taken as it is."""
    if isinstance(node, Mapping):
        return {key: _copied(value) for key, value in node.items()}
    return node


def _named(value: Any, kind: str, where: str, found: Components) -> Any:
    """What stands for a value in a config: itself, unless it is an object or names one."""
    if isinstance(value, Mapping) and "use" in value:
        return {**value, "use": _named(value["use"], kind, where, found)}
    if kind == "datasets" and isinstance(value, Mapping):
        check_not_splits(value, where)
    if value is None or isinstance(value, str | Mapping):
        return value
    try:
        target = _target(value, kind, where)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    given = found.setdefault(kind, [])
    label = getattr(value, "name", None) or name_of(value)
    stem = re.sub(r"\W+", "-", str(label)).strip("-_") or kind
    stem = stem if stem[0].isalpha() else f"python-{stem}"
    taken = {component.name for component in given}
    name = next(name for name in (stem, *(f"{stem}-{number}" for number in range(2, 10_000))) if name not in taken)
    options = f"{__name__}:RowsOptions" if kind == "datasets" and "options" in target.__annotations__ else None
    given.append(ObjectComponent(name, f"{__name__}:ObjectComponent", options=options, value=target))
    return name


def _target(value: Any, kind: str, where: str) -> Any:
    """What is called as `target(options, context)`, or as tools may be, is taken as it is."""
    if kind == "tools":
        return tool(value) if is_tool_function(value) else value
    if kind == "datasets":
        return _rows(value, where)
    if isinstance(value, type) or (inspect.isroutine(value) and _takes_options(value)):
        return value
    if kind == "rewards" and callable(value) and not hasattr(value, "score"):
        check_reward_function(value)
        reward = FunctionReward(value)
        return lambda options, context: reward

    def factory(options: Any, context: Any) -> Any:
        return value

    factory.__wrapped__ = value  # type: ignore[attr-defined]  # for checks of a reward before it is built
    return factory


def _takes_options(function: Callable[..., Any]) -> bool:
    """Whether it is a factory `(options, context)`."""
    return list(inspect.signature(function).parameters) == ["options", "context"]


class RowsOptions(Options):
    """Options of rows at hand."""

    fields: FieldMapping = Field(default_factory=FieldMapping, description="The columns of a row's fields.")


def _rows(value: Any, where: str) -> Any:
    """A factory of a task source. Raises ConfigError for what has no rows."""
    tasks = given_tasks(value, where)
    if not isinstance(tasks, FileDataset):
        return lambda options, context: tasks

    def source(options: RowsOptions, context: Any) -> TaskSource:
        return given_tasks(value, where, options.fields)

    return source
