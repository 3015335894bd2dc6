r"""`${…}` in a YAML of another system, as OmegaConf reads it.

| written | is |
|---|---|
| `${oc.env:NAME}`, `${oc.env:NAME,default}`, `${env:NAME}` | the environment variable |
| `${NAME}` | the key NAME at the top, else the environment variable |
| `${a.b.c}`, `${.c}`, `${..c}` | another value of the file, from the top, or from where this one stands |
| `${oc.select:a.b,default}` | the same, or the default where the key is missing |

Defaults may hold references themselves. `\${` is a plain `${`. OmegaConf itself would put environment variables into
what is written; here a variable can stay a `${NAME}` (`kept`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import yaml

from toolrl.errors import ConfigError

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_OPEN, _CLOSE = "\ue001", "\ue002"
"""Stand for `${` and `}` that are to stay, while a text is worked on."""
MISSING: Any = object()

Variable = Callable[[str, str | None], str | None]
"""An environment variable's name and default to its value; None where there is neither."""


def from_environ(name: str, default: str | None) -> str | None:
    """The value in the process's environment."""
    return os.environ.get(name, default)


def kept(name: str, default: str | None) -> str:
    """The reference itself, as a toolrl config has it: its value stays out of what is written."""
    return f"{_OPEN}{name if default is None else f'{name}:-{default}'}{_CLOSE}"


class References:
    """Resolves the references of one tree of plain data."""

    def __init__(self, tree: Any, variable: Variable = from_environ, where: str | None = None) -> None:
        self._tree = tree
        self._variable = variable
        self._where = where
        self._open: list[tuple[Any, ...]] = []
        """Places whose texts are being resolved."""

    def resolve(self, node: Any, path: tuple[Any, ...] = ()) -> Any:
        """A copy of the value at this path with every reference replaced. Raises ConfigError."""
        if isinstance(node, dict):
            return {key: self.resolve(item, (*path, key)) for key, item in node.items()}
        if isinstance(node, list):
            return [self.resolve(item, (*path, index)) for index, item in enumerate(node)]
        if isinstance(node, str) and "${" in node:
            return _plain(self._text(node, path))
        return node

    def _text(self, text: str, path: tuple[Any, ...]) -> Any:
        """One text's references replaced, innermost first."""
        if path in self._open:
            raise self._wrong(path, text, "refers to itself")
        self._open.append(path)
        try:
            return self._replaced(text.replace("\\${", _OPEN), path)
        finally:
            self._open.pop()

    def _replaced(self, text: str, path: tuple[Any, ...]) -> Any:
        while (match := _INNERMOST.search(text)) is not None:
            value = self._value(match[1].strip(), path)
            if match.span() == (0, len(text)):
                return value
            if isinstance(value, dict | list):
                raise self._wrong(path, match[0], "is a whole section, and stands inside a text")
            written = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            text = text[: match.start()] + written + text[match.end() :]
        if "${" in text:
            raise self._wrong(path, text[:80], "isn't closed, or is no reference")
        return text

    def _value(self, body: str, path: tuple[Any, ...]) -> Any:
        resolver, colon, arguments = body.partition(":")
        first, comma, rest = (part.strip() for part in arguments.partition(","))
        if resolver in ("oc.env", "env") and colon:
            return self._environment(first, rest if comma else None, path, body)
        if colon and resolver != "oc.select":
            raise self._wrong(path, f"${{{body}}}", f"asks for the resolver {resolver!r}; known are oc.env, oc.select")
        found = self._find(first if colon else body, path)
        if found is not MISSING:
            return found
        if colon:
            return _decoded(rest or "null")
        if _NAME.match(body):
            return self._environment(body, None, path, body)
        raise self._wrong(path, f"${{{body}}}", "names a key that isn't in the file")

    def _environment(self, name: str, default: str | None, path: tuple[Any, ...], body: str) -> str:
        if not _NAME.match(name):
            raise self._wrong(path, f"${{{body}}}", "names no environment variable")
        value = self._variable(name, None if default == "null" else default)
        if value is None:
            raise self._wrong(path, f"${{{body}}}", f"the environment variable {name} isn't set")
        return value.replace("${", _OPEN)  # What comes from outside is a value: references in it aren't followed.

    def _find(self, body: str, path: tuple[Any, ...]) -> Any:
        """A value of the tree, resolved; MISSING where it isn't there."""
        dots = len(body) - len(body.lstrip("."))
        above = path[: max(len(path) - dots, 0)] if dots else ()
        keys = [*above, *(key for key in re.split(r"[.\[\]]", body[dots:]) if key)]
        node: Any = self._tree
        for number, key in enumerate(keys):
            if isinstance(node, str) and "${" in node:
                node = self._text(node, tuple(keys[:number]))
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and str(key).isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                return MISSING
        found = self.resolve(node, tuple(keys))
        return found.replace("${", _OPEN) if isinstance(found, str) else found

    def _wrong(self, path: tuple[Any, ...], shown: str, what: str) -> ConfigError:
        place = ".".join(str(key) for key in path) or "the file"
        hint = "Write ${oc.env:NAME,default}, ${NAME} or ${section.key}."
        return ConfigError(f"{place}: {_plain(shown)!r} {what}", where=self._where, hint=hint)


def _plain(value: Any) -> Any:
    return value.replace(_OPEN, "${").replace(_CLOSE, "}") if isinstance(value, str) else value


def _decoded(text: str) -> Any:
    try:
        return text if _OPEN in text else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
