"""AReaL's settings as one tree: its defaults, the YAML over them, and overrides over that."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError
from toolrl_plugin_areal.convert.start_script import start_command

AREAL: dict[str, Any] = {
    "seed": 1,
    "total_train_epochs": 1,
    "gconfig": {"n_samples": 1, "max_new_tokens": 16384, "temperature": 1.0, "top_p": 1.0, "top_k": 100_000_000},
    "actor": {
        "dtype": "bfloat16",
        "gradient_checkpointing": False,
        "optimizer": {
            "type": "adam",
            "lr": 1e-3,
            "weight_decay": 0.01,
            "beta1": 0.9,
            "beta2": 0.999,
            "eps": 1e-8,
            "min_lr_ratio": 0.0,
            "lr_scheduler_type": "constant",
            "warmup_steps_proportion": 0.001,
            "gradient_clipping": 1.0,
        },
        "ppo_n_minibatches": 4,
        "eps_clip": 0.2,
        "reward_scaling": 1.0,
        "reward_bias": 0.0,
        "kl_ctl": 0.1,
    },
    "train_dataset": {"batch_size": 1, "shuffle": True},
    "tir": {
        "max_turns": 2,
        "max_length": 3000,
        "tool_timeout": 30,
        "enable_tools": "python",
        "is_chat_model": False,
    },
}
"""Those of AReaL's own defaults that decide what a run does; a config that leaves them out means them."""

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_MOST, _LONGEST = 50, 10_000
_ENV = re.compile(r"oc\.env:\s*(?P<name>[A-Za-z_]\w*)\s*(?:,(?P<default>.*))?\Z", re.DOTALL)
_OPEN, _CLOSE = "\ue001", "\ue002"
"""Stand for `${` and `}` of what is kept, while a text is worked on."""
MISSING = object()


class Settings:
    """Settings by dotted key: the user's over AReaL's defaults. Remembers which of the user's were asked for."""

    def __init__(self, tree: dict[str, Any], problems: Sequence[tuple[str, str]] = ()) -> None:
        self.problems = list(problems)
        """What couldn't be read: a key, and why."""
        self._used: set[str] = set()
        self._given: dict[str, Any] = {}
        whole = _merged(AREAL, tree)
        for key, value in _leaves(tree):
            try:
                self._given[key] = _resolved(whole, value)
            except ConfigError as error:
                self.problems.append((key, error.problems[0]))

    def get(self, key: str) -> Any:
        """What the user gave, else AReaL's default; None for neither."""
        self._used.add(key)
        value = self._given.get(key)
        if value is not None:
            return value
        default = _at(AREAL, key)
        return None if default is MISSING else default

    def given(self, key: str) -> bool:
        """True where the user gave a value of this key, or of one below it. A null is none."""
        fits = (value for name, value in self._given.items() if name == key or name.startswith(f"{key}."))
        return any(value is not None for value in fits)

    def null(self, key: str) -> bool:
        """True where the user says that there is none."""
        self._used.add(key)
        return key in self._given and self._given[key] is None

    def unused(self) -> list[str]:
        """Keys that the user gave a value and nobody asked for, in their order."""
        return [key for key, value in self._given.items() if key not in self._used and value is not None]


def read(path: str, overrides: Sequence[str]) -> Settings:
    """What a YAML holds, or the one that a start script names; with overrides such as `gconfig.n_samples=8`. Raises
    ConfigError."""
    text = _text(path)
    if Path(path).suffix not in (".yaml", ".yml"):
        path, words = start_command(text, path)
        text, overrides = _text(path), [*words, *overrides]
    tree, found = parse_yaml(text, path)
    problems = [(path, problem) for problem in found]
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"a config is a mapping of sections, this is a {type(tree).__name__}", where=path)
    tree = copy.deepcopy(tree)
    for word in overrides:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or not key:
            problems.append((word[:80], "is no override, which has the form section.key=value"))
            continue
        _set(tree, key.split("."), _value(value))
    if isinstance(tree.get("tir_config"), dict):
        tree["tir"] = _merged(tree["tir"] if isinstance(tree.get("tir"), dict) else {}, tree.pop("tir_config"))
    return Settings(tree, problems)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(
            f"{path!r} can't be read: {reason}", hint="Give the YAML of AReaL's TIR example, or its start script."
        ) from None


def _value(text: str) -> Any:
    """An override's value: YAML of plain words and lists, else text."""
    try:
        value, _ = parse_yaml(text, "override")
    except (ConfigError, yaml.YAMLError):
        return text
    return text if isinstance(value, dict) else value


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[keys[-1]] = value


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def _leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, name)
        else:
            yield name, value


def _resolved(whole: dict[str, Any], value: Any) -> Any:
    """A value with its references as OmegaConf reads them. An environment variable stays a `${NAME}`, so that its value
    isn't written. Raises ConfigError."""
    for _ in range(_MOST):
        match = _INNERMOST.search(value) if isinstance(value, str) and len(value) <= _LONGEST else None
        if match is None:
            break
        found = _referred(whole, match[1].strip())
        if match.span() == (0, len(value)):
            value = found
        elif isinstance(found, dict | list):
            raise ConfigError(f"{match[0]} is no plain value")
        else:
            value = value[: match.start()] + ("" if found is None else str(found)) + value[match.end() :]
    if isinstance(value, str):
        if _INNERMOST.search(value):
            raise ConfigError("its references have no end")
        value = value.replace(_OPEN, "${").replace(_CLOSE, "}")
    return value


def _referred(whole: dict[str, Any], key: str) -> Any:
    variable = _ENV.match(key)
    if variable is not None:
        default = variable["default"]
        return f"{_OPEN}{variable['name']}{'' if default is None else f':-{default.strip()}'}{_CLOSE}"
    found = _at(whole, key)
    if found is MISSING:
        raise ConfigError(f"${{{key}}} isn't there")
    return found


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return MISSING
        tree = tree[part]
    return tree
