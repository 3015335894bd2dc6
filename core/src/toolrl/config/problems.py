"""Turns pydantic's errors into lines to act on: the place in the YAML, the mistake, the given value."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolrl.config.other_names import counterpart
from toolrl.config.paths import Path, format_path, step
from toolrl.plugins.checks import nearest

_SYMBOLS = (
    ("greater than or equal to", "≥"),
    ("less than or equal to", "≤"),
    ("greater than", ">"),
    ("less than", "<"),
)
UNKNOWN_KEY = "unknown key"
_SHOULD = "Input should be "
_MAPPING_TYPES = ("model_type", "model_attributes_type", "dict_type", "dataclass_type", "mapping_type")


@dataclass(frozen=True)
class Problem:
    """One mistake in a config."""

    path: Path
    message: str
    component: str = ""
    """The component whose options they are, if any."""

    def line(self, base: str = "") -> str:
        """`environments.default.tools[0].options.precision: Input should be ≥ 1 (got 0) [calculator]`"""
        where = format_path(self.path, base)
        source = f" [{self.component}]" if self.component else ""
        return f"{where}: {self.message}{source}" if where else f"{self.message}{source}"


Shown = Callable[[Path, Any], str | None]
"""How the value at a path is shown in a message; None for not at all."""


def show_value(path: Path, value: Any) -> str | None:
    """A short scalar as it stands in YAML; only the kind of anything longer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else repr(value[:57] + "…")
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else None


def find_problems(
    error: ValidationError,
    model: type[BaseModel],
    data: Any,
    *,
    base: Path = (),
    component: str = "",
    shown: Shown = show_value,
) -> list[Problem]:
    """The problems of one validation, in order, with paths below `base`. Errors of a union's branches become one."""
    found: dict[Path, list[str]] = {}
    given: dict[Path, str | None] = {}
    for details in error.errors(include_url=False):
        path = _data_path(details, data)
        messages = found.setdefault((*base, *path), [])
        message, with_value = _message(details, path, model, component)
        if message not in messages:
            messages.append(message)
        if with_value:
            given[(*base, *path)] = shown((*base, *path), details["input"])
    return [
        Problem(path, _joined(messages) + (f" (got {given[path]})" if given.get(path) else ""), component)
        for path, messages in found.items()
    ]


def _data_path(details: ErrorDetails, data: Any) -> Path:
    """pydantic's location without what isn't in the file: names of a union's branches and of validators."""
    path: list[str | int] = []
    node = data
    location = details["loc"]
    for position, part in enumerate(location):
        key = step(node, part)
        if key is not None:
            node = node[key]
        elif not (isinstance(node, dict | list) and details["type"] == "missing" and position == len(location) - 1):
            continue
        path.append(part if key is None else key)
    return tuple(path)


def _message(details: ErrorDetails, path: Path, model: type[BaseModel], component: str) -> tuple[str, bool]:
    """The mistake, and whether the given value helps to see it."""
    kind, text = details["type"], details["msg"]
    if kind == "missing":
        return "missing, and it has no default", False
    if kind == "extra_forbidden":
        return _unknown_key(path, model, component), False
    if kind in ("value_error", "assertion_error"):
        text = text.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return text, not isinstance(details["input"], dict | list)
    if kind in _MAPPING_TYPES:
        if path == ("model",) and isinstance(details["input"], str):
            return f"{_SHOULD}a mapping; write `model: {{path: {details['input']}}}`", False
        return f"{_SHOULD}a mapping", True
    for words, symbol in _SYMBOLS:
        text = text.replace(words, symbol)
    return text, True


NO_OVERSAMPLING = "no episode is cut, as that favours short ones; `rollout.max_staleness: 1` is nearest"
_ELSEWHERE = (
    ("over_sampl", NO_OVERSAMPLING),
    ("oversampl", NO_OVERSAMPLING),
    ("actor_rollout_ref", "a key of verl's; `toolrl verl convert FILE` writes a config from verl's YAML or script"),
    ("gconfig", "a key of AReaL's; `toolrl areal convert FILE` writes a config from AReaL's YAML or script"),
    ("tool_config", "the tools of an environment stand under environments.NAME.tools"),
)
"""Parts of keys of other systems, and their counterparts here."""


def _unknown_key(path: Path, model: type[BaseModel], component: str) -> str:
    key = str(path[-1]) if path else ""
    owner = model_at(model, path[:-1])
    if owner is None:
        return UNKNOWN_KEY
    names = [field.alias or name for name, field in owner.model_fields.items()]
    if not names:
        return f"{UNKNOWN_KEY}; it takes none"
    other = next((instead for part, instead in _ELSEWHERE if part in key), None)
    if other is not None:
        return f"{UNKNOWN_KEY}; {other}"
    if not component and (setting := counterpart(key, names)) is not None:
        return f"{UNKNOWN_KEY}; did you mean {setting}?"
    near = nearest(key, names)
    return f"{UNKNOWN_KEY}; did you mean {near!r}?" if near else f"{UNKNOWN_KEY}; there are: {', '.join(names)}"


def model_at(model: type[BaseModel] | None, path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the mapping at `path`; None where no single model describes it."""
    annotation: Any = model
    for part in path:
        owner = None if isinstance(part, int) else _only_model(annotation)
        if owner is not None:
            fields = owner.model_fields
            field = fields.get(str(part)) or next((it for it in fields.values() if it.alias == part), None)
            annotation = field.annotation if field is not None else None
            continue
        # A list's or a mapping's items; of a union, the member that is one.
        inner = [it for it in (*_members(annotation),) if get_origin(it) in (list, dict, tuple)]
        annotation = get_args(inner[0])[-1] if inner else None
    return _only_model(annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(it for member in get_args(annotation) for it in _members(member))
    if hasattr(annotation, "__metadata__"):
        return _members(annotation.__origin__)
    return (annotation,)


def _only_model(annotation: Any) -> type[BaseModel] | None:
    models = [it for it in _members(annotation) if isinstance(it, type) and issubclass(it, BaseModel)]
    return models[0] if len(models) == 1 else None


def _joined(messages: Sequence[str]) -> str:
    """`Input should be a valid string` and `Input should be a valid list` as one."""
    if len(messages) > 1 and all(message.startswith(_SHOULD) for message in messages):
        return _SHOULD + " or ".join(message.removeprefix(_SHOULD) for message in messages)
    return "; ".join(messages)
