"""The settings of another system by dotted key, and what becomes of each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from toolrl.builtin.rows import JoinedRows, find_files, open_rows
from toolrl.config.problems import NO_OVERSAMPLING
from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError, DataError
from toolrl_common.conversion.script import UNKNOWN
from toolrl_common.references import References, kept

SMALLEST = 1e-30
"""Bound of what has to be above 0."""
DEFAULT_STEPS = 100
"""`trainer.steps` where they depend on data that can't be read here."""
_LOGGERS = ("console", "tensorboard")
_TRACKERS = ("wandb", "trackio", "mlflow")
"""Observers of plugins that needn't be installed."""
_NO_NAME = re.compile(r"[^\w.+]+", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_UNREAD = ("--config-name", "defaults: ")
"""Beginnings of notes on files of settings that couldn't be read."""
_TIGHT = re.compile(r"(?<=[\w'\"]):(?=[\w'\"\[{+-])")
"""`{a:1}` of Hydra, which YAML writes `{a: 1}`."""


@dataclass
class Reading:
    """The user's input: a tree of settings, and its parts that couldn't be read."""

    folder: Path
    """Where the config or the script is."""
    tree: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """A key or a file, and what is wrong with it."""

    def read_yaml(self, path: str, text: str) -> dict[str, Any]:
        """The mapping in a YAML. Raises ConfigError for what is none."""
        tree, problems = parse_yaml(text, path)
        self.problems.extend((path, problem) for problem in problems)
        if tree is not None and not isinstance(tree, dict):
            raise ConfigError(f"a config is a mapping of sections, this is a {type(tree).__name__}", where=path)
        return tree or {}

    def override(self, words: Iterable[str]) -> None:
        """Take `section.key=value` as Hydra does; a leading `+` is ignored, `~section.key` removes the key."""
        for word in map(str.strip, words):  # Arrays of scripts hold words with line breaks.
            key, equals, text = word.lstrip("+").partition("=")
            if word.startswith("~"):
                set_value(self.tree, key[1:], None)
            elif not equals or not key:
                self.problems.append((word[:80], "is no override, which has the form section.key=value"))
            elif UNKNOWN in text and not key.endswith("experiment_name"):
                self.problems.append((key, "its value is made by a command of the script; set it by hand"))
            else:
                set_value(self.tree, key, _value(text.replace(UNKNOWN, "")))


@dataclass(frozen=True)
class Number:
    """A row of a table: a number that is carried over as it is."""

    name: str
    """toolrl's."""
    keys: tuple[str, ...]
    """The other system's, the first that is given counts."""
    default: float | None = None
    least: float | None = 0.0
    most: float | None = None
    whole: bool = False
    above: float = -math.inf
    below: float = math.inf
    """A value outside of these bounds is the default, and isn't written."""

    def is_written(self, value: float) -> bool:
        """Whether this value is written."""
        return self.above < value < self.below


def count(name: str, *keys: str, default: int | None = None) -> Number:
    """The row of a whole number that is written where it is above 0."""
    return Number(name, keys, default, least=None, whole=True, above=0)


class Conversion:
    """One conversion: the user's settings over the system's defaults, and notes of what a toolrl config lacks.

    A subclass has a system's defaults. `unused` gives the settings that the conversion never asked for.
    """

    system: ClassVar[str]
    """Its name in messages."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Those of the system's own defaults that decide what a run does, by dotted key."""
    learning: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Keys of settings that change what is learned; all others change speed, memory or logs."""

    def __init__(self, reading: Reading) -> None:
        self.folder = reading.folder
        self.lost: dict[str, str] = dict(reading.problems)
        """The settings that weren't carried over, each with a note; most have an empty one."""
        self.remarks: list[str] = []
        """What was carried over and isn't quite the same."""
        self._given: dict[str, Any] = {}
        self._used: set[str] = set()
        self._idle: set[str] = set()
        self._ranked: dict[str, bool] = {}
        defaults: dict[str, Any] = {}
        for key, value in self.defaults.items():
            set_value(defaults, key, value)
        references = References(merged(defaults, reading.tree), kept)
        for key, value in leaves(reading.tree):
            if value == "???" or key.rpartition(".")[2] == "_target_":
                continue  # To be given elsewhere, and the class that Hydra makes of a section.
            try:
                self._given[key] = references.resolve(value, tuple(key.split(".")))
            except ConfigError as error:
                self.lose(key, error.problems[0])

    # What the user set.

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these settings that the user gave, else the system's default of the first that has one."""
        self._used.update(keys)
        for known in (self._given, self.defaults):
            for key in keys:
                if key in known:
                    return known[key]
        return default

    def given(self, *keys: str) -> bool:
        """Whether the user gave one of these."""
        return any(key in self._given for key in keys)

    def section(self, key: str) -> dict[str, Any]:
        """All that the user gave below a key, by the rest of its path."""
        inside = {name: value for name, value in self._given.items() if name.startswith(f"{key}.")}
        self._used.update(inside)
        return {name[len(key) + 1 :]: value for name, value in inside.items()}

    def unused(self) -> list[str]:
        """Keys that the user gave a value and the conversion never asked for, in their order."""
        return [key for key, value in self._given.items() if key not in self._used and value not in (None, "", [], {})]

    def idle(self, *keys: str) -> None:
        """Mark settings, with all below them, that have no effect in this config; they are listed last."""
        self._idle.update(keys)

    def flag(self, *keys: str, default: Any = None) -> bool:
        """A switch, also one that is written as text."""
        value = self.get(*keys, default=default)
        return value is True or (isinstance(value, str) and value.lower() == "true")

    def number(
        self,
        *keys: str,
        default: float | None = None,
        least: float | None = 0.0,
        most: float | None = None,
        whole: bool = False,
    ) -> float:
        """A number within bounds; the default, or else the system's, with a note, for what is none."""
        if default is None:
            default = float(next(self.defaults[key] for key in keys if self.defaults.get(key) is not None))
        value = self.get(*keys)
        if value is None:
            return default
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        inside = math.isfinite(found) and (least is None or found >= least) and (most is None or found <= most)
        if inside and (not whole or found.is_integer()):
            return found
        key = next((key for key in keys if self.given(key)), keys[0])
        self.lose(key, f"{str(value)[:40]!r} can't be; the config has {default:g}")
        return default

    def whole(self, *keys: str, default: int | None = None, least: int | None = None) -> int:
        """The same for a whole number."""
        return int(self.number(*keys, default=default, least=least, whole=True))

    def numbers(self, *rows: Number) -> dict[str, Any]:
        """The settings that these rows of a table carry over."""
        found = {
            row: self.number(*row.keys, default=row.default, least=row.least, most=row.most, whole=row.whole)
            for row in rows
        }
        return {row.name: int(value) if row.whole else value for row, value in found.items() if row.is_written(value)}

    # Notes.

    def lose(self, key: str, note: str = "", learned: bool | None = None) -> None:
        """Note a setting that isn't carried over, once. `learned` overrides whether it changes what is learned."""
        self.lost.setdefault(key, note or (NO_OVERSAMPLING if "over_sampl" in key or "oversampl" in key else ""))
        self._ranked.setdefault(key, self._is_of_learning(key) if learned is None else learned)

    def lose_unused(self) -> None:
        """Note every setting that the conversion never asked for; one that changes what is learned with its value."""
        for key in self.unused():
            learned = self._is_of_learning(key) and self._has_effect(key)
            self.lose(key, f"{self._given[key]!r:.80}" if learned else "", learned)

    @property
    def learned(self) -> list[str]:
        """Keys of the lost settings that change what is learned, in their order."""
        return [key for key in self.lost if self._ranked.get(key, self._is_of_learning(key))]

    def _is_of_learning(self, key: str) -> bool:
        return key.startswith(_UNREAD) or self.learning.search(key) is not None

    def _has_effect(self, key: str) -> bool:
        """Tell whether a setting does anything: it isn't off, in a section that is off or idle, or the default."""
        value, parts = self._given[key], key.split(".")
        above = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        off = any(_is_off(self._given.get(f"{it}.{name}", True)) for it in above for name in ("enable", "enabled"))
        by_default = key in self.defaults and value == self.defaults[key]
        return not (off or by_default or above & self._idle or _is_off(value))

    def refuse(self, key: str, problem: str, hint: str) -> NoReturn:
        """Stop the conversion at a setting without which the config would train something else. Raises ConfigError."""
        raise ConfigError(f"{key}: {problem}", hint=hint)

    def remark(self, text: str) -> None:
        """Note a difference, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    # Common to all systems.

    def warmup(self, share: float, steps: int) -> float | int:
        """`trainer.warmup_steps` for a share of the run's steps, which follows `trainer.steps`."""
        if share >= 1:
            return steps
        self.remark(f"trainer.warmup_steps: {share:g} is a share of trainer.steps, and follows it (now {steps})")
        return share

    def steps(self, total: int, epochs: int, batch: int, rows: int | None) -> tuple[int, int | None]:
        """Steps of the run, and of one pass over the data where its files can be read here."""
        known = rows is not None and rows >= batch
        if total <= 0 and not known:
            why = "can't be read here" if rows is None else f"have {rows} rows, less than one batch of {batch}"
            self.remark(
                f"trainer.steps: {self.system} goes {epochs} times through the data, and its files {why}; set it to "
                f"{epochs} × rows / {batch} (now {DEFAULT_STEPS})"
            )
        epoch = rows // batch if rows is not None and known else None
        return total if total > 0 else DEFAULT_STEPS if epoch is None else epochs * epoch, epoch

    def model_path(self, *keys: str) -> str:
        """`model.path`."""
        path = self.get(*keys)
        if isinstance(path, str) and path:
            return user_path(path)
        self.remark("model.path: the config names no model; ./model stands in its place")
        return "./model"

    def run_name(self, *keys: str) -> str:
        """`run.name`."""
        given = self.get(*keys)
        name = _NO_NAME.sub("-", given).strip("-._") if isinstance(given, str) else ""
        return name[:100] or "run"

    def observers(self, key: str) -> list[Any]:
        """`observers`, of a list of loggers."""
        loggers = listed(self.get(key))
        for logger in loggers:
            if logger in _TRACKERS:
                self.lose(key, f"install toolrl-plugin-{logger}, and add `{{use: {logger}}}` to `observers`")
            elif logger not in _LOGGERS:
                self.lose(key, f"{logger!r} isn't there")
        known = dict.fromkeys(logger for logger in loggers if logger in _LOGGERS)
        return list(known) if "console" in known else ["console", *known]


def _is_off(value: Any) -> bool:
    """Tell whether a value switches its setting off."""
    return str(value).lower() in ("none", "null", "false", "0", "0.0")


def read_text(path: str, hint: str) -> str:
    """The text of a file. Raises ConfigError with this hint."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(f"{path!r} can't be read: {reason}", hint=hint) from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One tree over another."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a tree by its dotted key."""
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from leaves(value, name)
        else:
            yield name, value


def set_value(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its dotted key."""
    *sections, last = key.split(".")
    for section in sections:
        below = tree.get(section)
        if not isinstance(below, dict):
            below = tree[section] = {}
        tree = below
    tree[last] = value


def listed(value: Any) -> list[str]:
    """A text or a list of texts as a list."""
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items if item is not None and item != ""]


def user_path(path: str) -> str:
    """A path as a toolrl config has it: `~` as `${HOME}`, without `./` before it twice over."""
    path = "${HOME}" + path[1:] if path == "~" or path.startswith("~/") else path
    while path.startswith("././"):
        path = path[2:]
    return path


def expanded(path: str) -> str:
    """A path with the values of the variables in it, as far as they are set here."""
    filled = _VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2] or match[0], path)
    return os.path.expanduser(filled)  # noqa: PTH111


def count_rows(value: Any) -> int | None:
    """Rows of a data file, or of several together; None where they can't be read here."""
    paths = [expanded(path) for path in listed(value)]
    try:
        return len(JoinedRows([open_rows(file) for file in find_files(paths)])) if paths else None
    except (DataError, OSError):
        return None


def lose_imports(path: str, package: str, is_there: Callable[[str], bool], settings: Conversion) -> None:
    """Note each module of a package, a regular expression, that a file imports and that isn't there."""
    try:
        text = Path(expanded(path)).read_text(encoding="utf-8", errors="replace")
    except OSError:
        settings.remark(f"{path} isn't here; it has to be where the run starts")
        return
    for name in re.findall(rf"^\s*(?:from|import)\s+({package}\b[\w.]*)", text, re.MULTILINE):
        if not is_there(name):
            settings.lose(f"{path}: {name}", "toolrl has no stand-in for it: take the import out", learned=True)


def _value(text: str) -> Any:
    """An override's value as Hydra reads it: YAML in brackets and of plain words, else text."""
    braces = text.startswith("{")
    try:
        value, _ = parse_yaml(_TIGHT.sub(": ", text) if braces else text, "override")
    except (ConfigError, yaml.YAMLError):
        return text
    plain = isinstance(value, str | int | float | bool | list | None) or (braces and isinstance(value, dict))
    return value if plain else text  # `a: b` is a text there.
