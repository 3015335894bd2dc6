"""Episodes as JSON and back, exactly.

One pair of functions is made for each type hint of `toolrl.types`, so a field added there is stored without a change
here. A reader takes a field's default where an older record lacks it and passes over fields it doesn't know.

The fields of an episode's only trajectory stand among its own. Of several, each is an object of `trajectories`, without
the beginning that it has in common with an earlier one, as far as nothing was sampled in it: `restates` holds that
trajectory's place and the number of tokens.

Fields typed `Any` (ground truths, arguments, what a data set's row held) may hold more than JSON does. What JSON lacks
is written as an object with one key that begins with `$`: numbers that aren't finite, tuples, bytes, paths, mappings
whose keys aren't plain text. Small arrays become lists. Anything else (images, tensors) is replaced by an `Opaque` that
names it: the one place where the way back isn't exact.
"""

from __future__ import annotations

import base64
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from toolrl.runs.files import plain_float
from toolrl.types import Episode, Message, RewardEntry, Task, Trajectory, Turn, common_beginning

_MAX_BYTES = 65536
_MAX_ITEMS = 4096

_GIVEN = {"ids": 0, "loss_mask": 0, "logprobs": 0.0, "weight_versions": -1}
"""What a token that wasn't sampled has in each field of tokens but `ids`."""
_LEFT_OUT = {(RewardEntry, "role"), (Turn, "usage"), (Trajectory, "sampling_masks"), (Task, "dataset")}
_LEFT_OUT |= {(Trajectory, "role"), (Trajectory, "trained"), (Trajectory, "teacher_logprobs"), (Message, "trained")}
"""Fields that a record lacks where they have their default."""

_OLD_STOPS = {"no_call": "final"}
"""Stop reasons of older records, with their present names."""

Coder = Callable[[Any], Any]


@dataclass(frozen=True)
class Opaque:
    """A value that a record could not hold."""

    text: str
    """What it was, such as `PIL.Image.Image`."""


@dataclass(frozen=True)
class StoredEpisode:
    """An episode with its place in the run."""

    step: int | None
    """None where the run ended before the step did and the episode doesn't say."""
    kind: str | None
    """train, eval, rollout or sft."""
    episode: Episode


def restated(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """Of each, the place of an earlier trajectory and how many tokens of it its prompt begins with: the longest."""
    return [
        max(
            (
                (place, common_beginning(earlier.ids, it.ids, min(len(earlier.ids), it.prompt_length)))
                for place, earlier in enumerate(trajectories[:number])
            ),
            key=lambda found: found[1],
            default=(0, 0),
        )
        for number, it in enumerate(trajectories)
    ]


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """An episode as JSON values, with `reward`, the sum of its parts."""
    record: dict[str, Any] = {"reward": plain_float(episode.reward), **_coders(Episode)[0](episode)}
    if len(record["trajectories"]) == 1:
        only = record.pop("trajectories")[0]
        return {**record, **only}
    for stored, (place, length) in zip(record["trajectories"], restated(episode.trajectories), strict=True):
        if length:
            stored |= {name: stored[name][length:] for name in _GIVEN} | {"restates": [place, length]}
    return record


def episode_from_json(record: Mapping[str, Any]) -> Episode:
    """The episode of a record. Raises ValueError naming the field that doesn't fit."""
    try:
        stored: list[Mapping[str, Any]] = []
        for it in record.get("trajectories", [record]):
            place, length = it.get("restates", (0, 0))
            given: dict[str, Any] = {}
            if length:
                earlier = stored[place]["ids"]
                if not 0 <= place < len(stored) or not 0 < length <= len(earlier):
                    raise ValueError(f"restates: trajectory {place} doesn't have {length} tokens")
                given = {name: [value] * length + it[name] for name, value in _GIVEN.items()}
                given["ids"] = earlier[:length] + it["ids"]
            stored.append({**it, **given})
        stop = {"stop_reason": _OLD_STOPS.get(record["stop_reason"], record["stop_reason"])}
        episode: Episode = _coders(Episode)[1]({**record, **stop, "trajectories": stored})
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not an episode: {error}") from error
    return episode


@cache
def _coders(hint: Any) -> tuple[Coder, Coder]:
    """The functions that write and read a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, bytes):
        return to_plain, from_plain
    if hint is float:
        return plain_float, float
    if hint in (int, str, bool, type(None)) or origin is Literal:
        return _same, _same
    if origin is tuple:
        return _tuple_coders(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return to_plain, from_plain
    if origin in (Union, types.UnionType):
        return _union_coders(arguments)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_coders(hint)
    raise TypeError(f"no JSON form for {hint!r}")


def _same(value: Any) -> Any:
    return value


def _tuple_coders(arguments: tuple[Any, ...]) -> tuple[Coder, Coder]:
    item = arguments[0]  # tuple[X, ...] or a span, whose parts are alike
    if item is int:
        return list, tuple
    write, read = _coders(item)
    return (lambda values: [write(value) for value in values]), (lambda values: tuple(read(value) for value in values))


def _union_coders(arguments: tuple[Any, ...]) -> tuple[Coder, Coder]:
    options = [argument for argument in arguments if argument is not type(None)]
    if len(options) == 1:
        write, read = _coders(options[0])
        return (lambda it: None if it is None else write(it)), (lambda it: None if it is None else read(it))
    names = {option: {field.name for field in fields(option)} for option in options}

    def read_any(record: Any) -> Any:
        # The class whose fields are nearest: every class has fields that the others lack.
        best = max(options, key=lambda option: len(names[option] & record.keys()) - len(record.keys() - names[option]))
        return _coders(best)[1](record)

    def write_any(value: Any) -> Any:
        cls: Any = type(value)
        return _coders(cls)[0](value)

    return write_any, read_any


def _dataclass_coders(cls: type) -> tuple[Coder, Coder]:
    hints = typing.get_type_hints(cls)
    coders = {field.name: _coders(hints[field.name]) for field in fields(cls)}
    optional = {field.name: field.default for field in fields(cls) if (cls, field.name) in _LEFT_OUT}

    def write(value: Any) -> dict[str, Any]:
        return {
            name: coder[0](getattr(value, name))
            for name, coder in coders.items()
            if name not in optional or getattr(value, name) != optional[name]
        }

    def read(record: Mapping[str, Any]) -> Any:
        return cls(**{name: coder[1](record[name]) for name, coder in coders.items() if name in record})

    return write, read


def to_plain(value: Any) -> Any:
    """Any value as JSON values, by the module's `$` forms."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        # Python refuses to print longer integers in decimal.
        return value if value.bit_length() < 8192 else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_plain(item) for key, item in value.items()}
        return {"$map": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item) for item in value]}
    return _uncommon_to_plain(value)


def _uncommon_to_plain(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) <= _MAX_BYTES:
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Path):
        return {"$path": str(value)}
    if isinstance(value, Opaque):
        return {"$opaque": value.text}
    # numpy and torch scalars and small arrays, without importing either
    if hasattr(value, "tolist") and math.prod(getattr(value, "shape", (_MAX_ITEMS + 1,))) <= _MAX_ITEMS:
        return to_plain(value.tolist())
    shape = f" {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return {"$opaque": f"{type(value).__module__}.{type(value).__qualname__}{shape}"}


_READ_TAGGED: dict[str, Coder] = {
    "$int": lambda value: int(value, 16),
    "$float": float,
    "$map": lambda value: {from_plain(key): from_plain(item) for key, item in value},
    "$tuple": lambda value: tuple(from_plain(item) for item in value),
    "$bytes": base64.b64decode,
    "$path": Path,
    "$opaque": Opaque,
}


def from_plain(value: Any) -> Any:
    """The value that `to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            (tag, content), *_ = value.items()
            if tag in _READ_TAGGED:
                return _READ_TAGGED[tag](content)
        return {key: from_plain(item) for key, item in value.items()}
    return value
