"""verl's settings as one tree: its defaults, a YAML with its `defaults:` list, and overrides over it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError
from toolrl_plugin_verl.convert.defaults import VERL
from toolrl_plugin_verl.convert.shell import UNKNOWN, trainer_command
from toolrl_plugin_verl.variables import kept, resolve

_VERL_BASES = frozenset(("ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "_generated_ppo_trainer"))
_NOT_SETTINGS = frozenset(("hydra", "defaults"))
_DEEPEST = 8
_TIGHT = re.compile(r"(?<=[\w'\"]):(?=[\w'\"\[{+-])")
"""`{a:1}` of hydra, which YAML writes `{a: 1}`."""
MISSING = object()


@dataclass
class Given:
    """What the user gave."""

    name: str
    """Of the config or the script, for messages."""
    tree: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What couldn't be read: a key or a file, and why."""


class Settings:
    """Settings by dotted key: the user's over verl's defaults. Remembers which of the user's were asked for."""

    def __init__(self, given: Given) -> None:
        self._given = {
            key: value
            for key, value in _leaves(given.tree)
            if key.partition(".")[0] not in _NOT_SETTINGS and not _sets_nothing(key, value)
        }
        self._used: set[str] = set()
        self.problems = list(given.problems)
        whole = _merged(VERL, given.tree)
        for key, value in list(self._given.items()):
            try:
                self._given[key] = _resolved(whole, key, value)
            except ConfigError as error:
                self.problems.append((key, error.problems[0]))
                del self._given[key]

    def get(self, *keys: str) -> Any:
        """The first of these keys that the user gave, else verl's default of the first that has one; None for none."""
        found: Any = MISSING
        for key in keys:
            self._used.add(key)
            if found is MISSING and key in self._given:
                found = self._given[key]
        if found is not MISSING:
            return found
        defaults = (_at(VERL, key) for key in keys)
        return next((value for value in defaults if value is not MISSING), None)

    def given(self, *keys: str) -> bool:
        """True where the user gave one of these."""
        return any(key in self._given for key in keys)

    def section(self, key: str) -> dict[str, Any]:
        """All that the user gave below a key, by the rest of its path."""
        inside = {name: value for name, value in self._given.items() if name.startswith(f"{key}.")}
        self._used.update(inside)
        return {name[len(key) + 1 :]: value for name, value in inside.items()}

    def unused(self) -> list[str]:
        """Keys that the user gave and nobody asked for, in their order."""
        return [key for key in self._given if key not in self._used]


def read(path: str, overrides: Sequence[str]) -> Given:
    """What a YAML or a start script holds, with further overrides. Raises ConfigError."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(f"{path!r} can't be read: {reason}", hint="Give verl's YAML or a start script.") from None
    given = Given(path)
    if file.suffix in (".yaml", ".yml"):
        given.tree = _composed(file, text, given, [])
        if isinstance(given.tree.get("tools"), list) and len(given.tree) == 1:
            raise ConfigError(
                f"{path!r} is a tool YAML, which toolrl reads as it is",
                hint="Name it in a config: `tools: [{use: verl, options: {tool_config_path: …}}]`; or convert the "
                "config or script that names it.",
            )
    else:
        command = trainer_command(text, path)
        if command.more:
            given.problems.append((path, f"{command.more} further commands start the trainer; only the first is read"))
        if command.branches:
            given.problems.append(
                (path, "conditions and loops aren't followed: each body is read as if it ran once, the last one counts")
            )
        _apply(command.arguments, given)
    _apply(overrides, given)
    return given


def _apply(arguments: Sequence[str], given: Given) -> None:
    """Arguments of main_ppo: hydra's own first, then overrides in order."""
    words = list(_joined(arguments))
    folder = next((word.partition("=")[2] for word in words if word.startswith("--config-path=")), "")
    name = next((word.partition("=")[2] for word in words if word.startswith("--config-name=")), "")
    if name and name.removesuffix(".yaml") not in _VERL_BASES:
        _apply_config(folder, name, given)
    for word in words:
        if not word.startswith("-"):
            _override(word, given)


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    """`--config-name X`, `-cn X` and `--config X` as `--config-name=X`."""
    long = {
        "--config": "--config-name",
        "-cp": "--config-path",
        "-cn": "--config-name",
        "--config-dir": "--config-path",
        "-cd": "--config-path",
    }
    waiting = ""
    for word in arguments:
        if waiting:
            yield f"{waiting}={word}"
            waiting = ""
            continue
        flag, equals, value = word.partition("=")
        flag = long.get(flag, flag)
        if flag in ("--config-path", "--config-name") and not equals:
            waiting = flag
        else:
            yield f"{flag}{equals}{value}" if word.startswith("-") else word


def _apply_config(folder: str, name: str, given: Given) -> None:
    base = Path(given.name).parent
    label = f"--config-name={name}"
    if "${" in folder or UNKNOWN in folder:
        given.problems.append((label, f"the folder {folder!r} isn't known here, so what the config sets is missing"))
        return
    file = Path(folder or ".") / (name if name.endswith(".yaml") else f"{name}.yaml")
    found = next((path for path in (file, base / file, base / file.name) if path.is_file()), None)
    if found is None:
        given.problems.append(
            (
                label,
                f"there is no {str(file)!r}, so what it sets is missing; run this where the script runs",
            )
        )
        return
    given.tree = _merged(_composed(found, found.read_text(encoding="utf-8"), given, []), given.tree)


def _composed(file: Path, text: str, given: Given, above: list[Path]) -> dict[str, Any]:
    """A YAML with those that its `defaults:` names under it, or over it where they stand after `_self_`."""
    tree, problems = parse_yaml(text, str(file))
    given.problems.extend((str(file), problem) for problem in problems)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"a config is a mapping of sections, this is a {type(tree).__name__}", where=str(file))
    own = {key: value for key, value in tree.items() if key not in _NOT_SETTINGS}
    result: dict[str, Any] = {}
    listed = tree.get("defaults")
    names = listed if isinstance(listed, list) else []
    if "_self_" not in names:
        names = [*names, "_self_"]
    for name in names:
        result = _merged(result, own if name == "_self_" else _base(name, file, given, [*above, file]))
    return result


def _base(name: Any, file: Path, given: Given, above: list[Path]) -> dict[str, Any]:
    if isinstance(name, str) and name in _VERL_BASES:
        return {}
    path = file.parent / f"{name}.yaml"
    if isinstance(name, str) and path.is_file() and path not in above and len(above) < _DEEPEST:
        return _composed(path, path.read_text(encoding="utf-8"), given, above)
    if isinstance(name, dict):
        why = "a config group isn't read; verl's own defaults stand for what it sets"
    else:
        why = f"there is no such file beside {str(file)!r}; what it sets is missing"
    given.problems.append((f"defaults: {name}", why))
    return {}


def _override(word: str, given: Given) -> None:
    key, equals, text = word.lstrip("+").partition("=")
    if word.startswith("~"):
        _set(given.tree, key[1:].split("."), None)
        return
    if not equals or not key:
        given.problems.append((word[:80], "is no override, which has the form section.key=value"))
        return
    if UNKNOWN in text and key != "trainer.experiment_name":
        given.problems.append((key, "its value is made by a command of the script; set it by hand"))
        return
    _set(given.tree, key.split("."), _value(text.replace(UNKNOWN, "")))


def _value(text: str) -> Any:
    """An override's value as hydra reads it: YAML in brackets and of plain words, else text."""
    if text.startswith("{") and not text.endswith("}"):
        return text
    if text.startswith("{"):
        text = _TIGHT.sub(": ", text)
    try:
        value, _ = parse_yaml(text, "override")
    except (ConfigError, yaml.YAMLError):
        return text
    if isinstance(value, dict) and not text.startswith("{"):
        return text  # `a: b` is a text there.
    if not isinstance(value, str | int | float | bool | dict | list | None):
        return text
    return value


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[keys[-1]] = value


def _sets_nothing(key: str, value: Any) -> bool:
    """The class that hydra makes of a section, and `???` for what is to be given elsewhere."""
    return value == "???" or key.rpartition(".")[2] == "_target_"


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = _merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, name)
        else:
            yield name, value


def _resolved(whole: dict[str, Any], key: str, value: Any) -> Any:
    if not (isinstance(value, list | dict) or (isinstance(value, str) and "${" in value)):
        return value
    return resolve(whole, kept, only=tuple(key.split(".")))


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return MISSING
        tree = tree[part]
    return tree
