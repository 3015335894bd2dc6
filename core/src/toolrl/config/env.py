"""Environment variables in a config: `${NAME}` and `${NAME:-default}` inside any text value.

A value is taken for a secret unless it can only be something else (a path that is there, a number, a device, a server's
bare address, a hub's `owner/name` at `model.path`, the name of one of the config's environments), and neither the
variable nor its place is called like a credential.
A secret goes into the config that the run uses and nowhere else: the run's folder, logs and messages keep `${NAME}`.
Other values stay in the run's folder, as `${NAME:-value}`, so resuming and evaluating need none of their variables.
A plain `${` is written `$${`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

from toolrl.config.paths import Path

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}?")
_BODY = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?\Z", re.DOTALL)
_CREDENTIAL = re.compile(
    r"key|token(?!s|izer)|secret|pass|pwd|pw\b|cred|auth|cookie|session|signature|private|bearer|jwt|headers?$|^env$",
    re.I,
)
"""In the name of a variable, or of an option, whose value is one."""
_PLAIN = re.compile(
    r"[+-]?\d{1,9}(\.\d+)?(e[+-]?\d+)?|true|false|auto|cpu|cuda(:\d+)?|https?://[\w.-]+(:\d+)?(/v\d)?/?"
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SHORTEST_SECRET = 4
"""Shorter values aren't looked for inside other texts: `1` is in too many of them to be a secret."""


@dataclass
class Interpolated:
    """A config's tree with the variables' values in it, and what is needed to hide them again."""

    tree: Any = None
    texts: dict[Path, str] = field(default_factory=dict)
    """The text as written, for each place that held a reference, with the values that are no secrets as defaults."""
    missing: dict[Path, str] = field(default_factory=dict)
    """What is wrong with a reference, by place. The tree keeps the text there."""
    values: dict[str, str] = field(default_factory=dict, repr=False)
    """The variables that hold secrets."""
    found: list[tuple[Path, str, str]] = field(default_factory=list, repr=False)
    """Place, variable and value of each reference."""

    def mask(self, text: str) -> str:
        """A text with the values of variables taken out again, also where one stands quoted or in a URL."""
        for form, name in self._forms:
            if form in text:
                text = text.replace(form, f"${{{name}}}")
        return text

    @cached_property
    def _forms(self) -> list[tuple[str, str]]:
        """Each form of a value with its variable, the longest first. Valid once all values are known."""
        found = {
            form: name
            for name, value in self.values.items()
            if len(value) >= _SHORTEST_SECRET
            for form in (*_quoted(value), value)
        }
        return sorted(found.items(), key=lambda item: -len(item[0]))


def _quoted(value: str) -> Iterator[str]:
    """A value as Python, JSON and a URL write it inside a text."""
    yield repr(value)[1:-1]
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    for safe in ("/", ""):
        yield quote(value, safe, errors="surrogateescape")
        yield quote_plus(value, safe, errors="surrogateescape")


def interpolate(tree: Any, environ: Mapping[str, str]) -> Interpolated:
    """A copy of `tree` with every reference replaced."""
    result = Interpolated()
    result.tree = _copy(tree, (), environ, result)
    environments = tree.get("environments") if isinstance(tree, dict) else None
    names = set(environments) if isinstance(environments, dict) else set()
    result.values = {name: value for path, name, value in result.found if not _is_plain(path, name, value, names)}
    secrets = set(result.values.values())
    plain = {name: value for _, name, value in result.found if value not in secrets}
    for path, text in result.texts.items():
        result.texts[path] = _REFERENCE.sub(lambda match: _with_default(match, plain), text)
    return result


def _is_plain(path: Path, name: str, value: str, names: Collection[Any]) -> bool:
    """Whether a value is certainly no secret."""
    if any(_CREDENTIAL.search(str(part)) for part in (name, *path)) or "}" in value:
        return False
    hub = path == ("model", "path") and _HUB_NAME.fullmatch(value) is not None
    # Of texts that can't be paths, os.path says that they aren't there, and pathlib raises.
    known = hub or value in names or _PLAIN.fullmatch(value) is not None
    return known or os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111


def _with_default(match: re.Match[str], plain: Mapping[str, str]) -> str:
    body = _BODY.match(match["body"] or "")
    return f"${{{body['name']}:-{plain[body['name']]}}}" if body is not None and body["name"] in plain else match[0]


def _copy(node: Any, path: Path, environ: Mapping[str, str], result: Interpolated) -> Any:
    if isinstance(node, dict):
        return {key: _copy(item, (*path, key), environ, result) for key, item in node.items()}
    if isinstance(node, list):
        return [_copy(item, (*path, index), environ, result) for index, item in enumerate(node)]
    if isinstance(node, str) and "${" in node:
        return _replace(node, path, environ, result)
    return node


def _replace(text: str, path: Path, environ: Mapping[str, str], result: Interpolated) -> str:
    """One text's references replaced; the text itself where one of them can't be."""
    result.texts[path] = text

    def value(match: re.Match[str]) -> str:
        if match["body"] is None:
            return "${"
        body = _BODY.match(match["body"])
        if body is None or not match[0].endswith("}"):
            result.missing[path] = (
                f"{match[0]!r} is no variable; write ${{NAME}} or ${{NAME:-default}}, or $${{ for a plain ${{"
            )
            return match[0]
        name, default = body["name"], body["default"]
        found = environ.get(name)
        if default is not None and not found:
            return default
        if found is None:
            result.missing[path] = f"the environment variable {name} isn't set; set it, or write ${{{name}:-default}}"
            return match[0]
        result.found.append((path, name, found))
        return found

    replaced = _REFERENCE.sub(value, text)
    return text if path in result.missing else replaced
