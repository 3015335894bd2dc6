"""RLFactory's settings as dotted keys: of a script that starts verl.trainer.main_ppo, or of a YAML, and overrides.

A script isn't run. Its assignments are followed, `$NAME` is replaced where one gave it a value, and stays `${NAME}`
where none did, which a toolrl config takes from the environment. `${NAME:-default}` and sums in `$((…))` are
understood. In a YAML `${section.key}` is the value of that key, and `${oc.env:NAME,default}` becomes
`${NAME:-default}`.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^${}]*))?\}|([A-Za-z_]\w*))")
_SUM = re.compile(r"\$\(\(((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+)\)\)")
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_ENV = re.compile(r"oc\.env:\s*(?P<name>[A-Za-z_]\w*)\s*(?:,(?P<default>.*))?\Z", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*(?::-.*)?\Z", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w.@/-]*=")
_ENDS = ("|", ">", ">>", "2>&1", "&", "&&", ";", "<")
_MODULE = re.compile(r"verl\.trainer\.main_(?:ppo|(grpo))\b")
_LONGEST = 100_000
_MOST = 50
"""References that are followed in one value."""
_OPEN, _CLOSE = "\ue001", "\ue002"
"""Stand for `${` and `}` of what is kept, while a text is worked on."""
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class Settings:
    """Settings that the user gave, in their order. Remembers which were asked for."""

    given: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What couldn't be read, and why."""
    folder: Path = field(default_factory=Path)
    """Where the script or the YAML is."""
    _used: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default."""
        self._used.add(key)
        return self.given.get(key, default)

    def unused(self) -> list[str]:
        """Keys that nobody asked for."""
        return [key for key in self.given if key not in self._used]

    def override(self, word: str) -> None:
        """Take `key=value`."""
        key, equals, text = word.lstrip("+").partition("=")
        if not equals or not _OVERRIDE.match(word):
            self.problems.append((word[:80], "is no override, which has the form section.key=value"))
        elif "$(" in text or "`" in text:
            self.problems.append((key, "its value is made by a command of the script; set it by hand"))
        else:
            self.given[key] = _value(text)

    def resolve(self) -> None:
        """Put values in place of references to them. One that can't be followed is a problem, and its key is gone."""
        found: dict[str, Any] = {}
        for key, value in self.given.items():
            try:
                found[key] = _resolved(self.given, value)
            except ConfigError as error:
                self.problems.append((key, error.problems[0]))
        self.given = found


def read(path: str, overrides: Sequence[str]) -> Settings:
    """What a script or a YAML holds, with further overrides. Raises ConfigError."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(f"{path!r} can't be read: {reason}", hint="Give main_grpo.sh, or a YAML.") from None
    settings = Settings(folder=file.parent)
    if file.suffix in (".yaml", ".yml"):
        tree, problems = parse_yaml(text, path)
        settings.problems.extend((path, problem) for problem in problems)
        if not isinstance(tree, dict):
            raise ConfigError("a config is a mapping of sections", where=path)
        settings.given.update(_leaves(tree))
    else:
        for word in _arguments(text, path):
            settings.override(word)
    for word in overrides:
        settings.override(word)
    settings.resolve()
    return settings


def _arguments(text: str, path: str) -> list[str]:
    """The words behind main_ppo, variables replaced. Raises ConfigError."""
    values: dict[str, str] = {}
    for line in text.replace("\\\r\n", "").replace("\\\n", "").splitlines():
        line = _SUM.sub(lambda match: _sum(match[1], values, match[0]), line.strip())
        started = None if line.startswith("#") else _MODULE.search(line)
        if started is not None:
            # There is no main_grpo in verl; guides that name it mean GRPO.
            implied = ["algorithm.adv_estimator=grpo"] if started[1] else []
            return [*implied, *_overrides(line[started.end() :], values, path)]
        match = _ASSIGNMENT.match(line)
        if match is not None and not line.startswith("#"):
            words = _words(match[2], path)
            values[match[1]] = _filled(words[0], values, path) if words else ""
    raise ConfigError(
        "no command starts verl.trainer.main_ppo",
        where=path,
        hint="Give the script that starts the training, such as main_grpo.sh.",
    )


def _overrides(line: str, values: dict[str, str], path: str) -> Iterator[str]:
    for word in _words(line, path):
        if word in _ENDS:
            return
        if not word.startswith(("$@", "$*", "-")):
            key, equals, value = word.partition("=")
            yield f"{key}{equals}{_filled(value, values, path)}"


def _words(text: str, path: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"a command can't be read: {error}", where=path) from None


def _filled(text: str, values: Mapping[str, str], path: str) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if values.get(name):
            return values[name].replace("${", _OPEN).replace("}", _CLOSE)
        if default is not None:
            return default.replace('"', "")
        return "" if name in values else f"{_OPEN}{name}{_CLOSE}"

    for _ in range(_MOST):  # A default may hold a variable.
        filled = _VARIABLE.sub(value, text)
        if len(filled) > _LONGEST:
            raise ConfigError("its variables expand to too much text", where=path)
        if filled == text:
            break
        text = filled
    return text.replace(_OPEN, "${").replace(_CLOSE, "}")


def _sum(text: str, values: Mapping[str, str], whole: str) -> str:
    """What `$((…))` comes to; as it is written where that isn't known here."""
    try:
        plain = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda match: match[1] or match[2], text).strip()
        return str(_computed(ast.parse(plain, mode="eval").body, values))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return whole


def _computed(node: ast.expr, values: Mapping[str, str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(values.get(node.id, ""))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_computed(node.left, values), _computed(node.right, values))
        if abs(found) > 10**15:
            raise ValueError
        return found
    raise ValueError


def _resolved(given: Mapping[str, Any], value: Any) -> Any:
    """A value with its references as OmegaConf reads them. Variables of the environment stay what they are. Raises
    ConfigError."""
    if isinstance(value, list):
        return [_resolved(given, item) for item in value]
    for _ in range(_MOST):
        match = _REFERENCE.search(value) if isinstance(value, str) and len(value) <= _LONGEST else None
        if match is None:
            break
        found = _referred(given, match[1].strip())
        if match.span() == (0, len(value)):
            value = found
        elif isinstance(found, list | dict):
            raise ConfigError(f"{match[0]} is no plain value")
        else:
            value = value[: match.start()] + ("" if found is None else str(found)) + value[match.end() :]
    if isinstance(value, str):
        if _REFERENCE.search(value):
            raise ConfigError("its references have no end")
        value = value.replace(_OPEN, "${").replace(_CLOSE, "}")
    return value


def _referred(given: Mapping[str, Any], key: str) -> Any:
    if key in given:
        return given[key]
    variable = _ENV.match(key)
    if variable is not None:
        default = variable["default"]
        return f"{_OPEN}{variable['name']}{'' if default is None else f':-{default.strip()}'}{_CLOSE}"
    if _NAME.match(key):
        return f"{_OPEN}{key}{_CLOSE}"
    raise ConfigError(f"${{{key}}} isn't there")


def _value(text: str) -> Any:
    """As hydra reads it: YAML of plain words and brackets, else text."""
    try:
        value, _ = parse_yaml(text, "override")
    except (ConfigError, yaml.YAMLError):
        return text
    if isinstance(value, dict) and not text.startswith("{"):
        return text
    return value if isinstance(value, str | int | float | bool | dict | list | None) else text


def _leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, name)
        else:
            yield name, value
