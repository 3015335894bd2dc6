"""Python objects in a config: wherever a file names a component, a dict may hold the component itself.

    tools       a function with type hints, with or without `@tool`, a `Tool` class, a toolset
    rewards     a function of an episode that returns a number, a `Score`, or whether the answer is correct; an object
                that follows `Reward`
    data        a list of dicts, a `datasets.Dataset`, a data frame or an Arrow table, a list of `Task`
    all others  an object that follows the protocol of its kind, or a class or factory `(options, context)`

The objects become components of a plugin `python-objects` that belongs to the run alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from toolrl.builtin.datasets import FileDataset
from toolrl.builtin.given_rows import HINT, check_not_splits, given_rows
from toolrl.builtin.options import FieldMapping, Options
from toolrl.builtin.rows import FileRows, JoinedRows
from toolrl.component import Component
from toolrl.config.components import config_sections
from toolrl.errors import ConfigError
from toolrl.kinds import KINDS
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import Registry
from toolrl.tools import tool
from toolrl.tools.callables import name_of
from toolrl.tools.function import is_async
from toolrl.tools.toolset import is_tool_function
from toolrl.tools.values import as_number, scalar
from toolrl.types import Episode, Score, Task

PLUGIN = "python-objects"
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
                several = place.endswith("[]") and isinstance(section[key], list | tuple)
                values = list(section[key]) if several else [section[key]]
                named = [_named(value, kind.name, where, found) for value in values]
                section[key] = named if several else named[0]
    if not found:
        return copied, registry
    others = [replace(it, components=_hidden(it.components, found)) for it in registry.plugins]
    return copied, Registry([*others, PluginInfo(PLUGIN, components=found)])


def _hidden(components: Components, by: Components) -> Components:
    """A plugin's components; one that an object has the name of is reached by `plugin/name` only."""
    names = {kind: {component.name for component in given} for kind, given in by.items()}
    return {
        kind: [replace(it, short=False) if it.name in names.get(kind, ()) else it for it in given]
        for kind, given in components.items()
    }


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
        reward = _FunctionReward(value)
        return lambda options, context: reward

    def factory(options: Any, context: Any) -> Any:
        return value

    factory.__wrapped__ = value  # type: ignore[attr-defined]  # for checks of a reward before it is built
    return factory


def _takes_options(function: Callable[..., Any]) -> bool:
    """Whether it is a factory `(options, context)`."""
    return list(inspect.signature(function).parameters) == ["options", "context"]


_OF_OTHERS = {
    "TRL": ("prompts", "completions", "completion_ids"),
    "verl": ("data_source", "solution_str", "ground_truth"),
}
"""Parameters of reward functions in other systems."""


def check_reward_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for a reward function that can't be called with an episode, or is written for another system."""
    signature = inspect.signature(function)
    system = next((it for it, names in _OF_OTHERS.items() if not set(names).isdisjoint(signature.parameters)), None)
    try:
        signature.bind(None)
    except TypeError as error:
        problem = str(error)
    else:
        if system is None:
            return
        problem = f"these are the parameters of {system}'s reward functions"
    name = name_of(function)
    text = (
        f"reward {name!r} takes {signature}; expected one parameter, the episode ({problem}). Write "
        f"`def {name}(episode)`: episode.final_text is the model's last text, episode.task.answer the expected answer"
    )
    if system == "verl":
        text += "; or run it as it is by the plugin verl: docs/howto/from-verl.md"
    raise TypeError(text)


class _FunctionReward:
    """A reward made of a function."""

    def __init__(self, function: Callable[[Episode], Any]) -> None:
        self._function = function
        self.score: Any = self._awaited if is_async(function) else self._called

    async def _awaited(self, episode: Episode) -> Score:
        return _score(await self._function(episode))

    def _called(self, episode: Episode) -> Any:
        given = self._function(episode)
        return _later(given) if inspect.isawaitable(given) else _score(given)  # a wrapper of an async function


async def _later(given: Awaitable[Any]) -> Score:
    return _score(await given)


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    given = scalar(value)
    try:
        number = as_number(given)
    except TypeError:
        shown = "None" if value is None else f"{type(value).__name__} {value!r:.80}"
        raise TypeError(f"it returned {shown}, expected a number, a bool or a Score") from None
    return Score(number, metrics={"correct": number} if isinstance(given, bool) else {})


class RowsOptions(Options):
    """Options of rows at hand."""

    fields: FieldMapping = Field(default_factory=FieldMapping, description="The columns of a row's fields.")


def _rows(value: Any, where: str) -> Any:
    """A factory of a task source. Raises ConfigError for what has no rows."""
    rows = given_rows(value, where)
    if not isinstance(rows, FileRows):
        if len(rows) and not isinstance(rows[0], Task):
            kind = type(rows[0]).__name__
            raise ConfigError(f"{where}: row 0 is a {kind}, expected a dict or a Task", hint=HINT)
        return lambda options, context: rows

    def source(options: RowsOptions, context: Any) -> FileDataset:
        return FileDataset(JoinedRows([rows]), options.fields)

    return source
