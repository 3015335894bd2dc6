"""Input schemas of servers, made fit to check arguments with.

A schema is text from outside, and checking runs on the event loop. So what could hold that up is taken out or not used:

- regular expressions, some of which take for ever on some texts: they are told to the model and checked by the server;
- references by which a schema leads back to itself: it is checked once, and not what follows inside of it;
- references by which one argument would be checked against very many schemas, and those to other documents.

Where a schema can't be used, one that takes any arguments stands in for it, with a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from toolrl.tools.validation import compile_schema

MAX_SCHEMA_CHARS = 200_000
MAX_CHECKS = 5_000
"""Schemas that arguments may be checked against, each counted as often as references lead to it."""
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose keys are names and no keywords."""
_DATA = ("const", "default", "enum", "examples", "required", "type")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_log = logging.getLogger(__name__)


class UnusableSchemaError(Exception):
    """Arguments can't be checked by a schema; the message says why."""


def usable_schema(given: Any, label: str) -> dict[str, Any]:
    """A server's input schema, made one of type object whose required arguments are all named. Where it is no JSON
    Schema, or refers to what isn't in it, one that takes any arguments stands in for it, with a warning."""
    schema: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    schema["type"] = "object"
    properties = schema.get("properties")
    properties = dict(properties) if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str):
            properties.setdefault(name, {})
    schema["properties"] = properties
    try:
        schema = _without_patterns(schema)
        _check(schema)
        return schema
    except UnusableSchemaError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - a schema from outside can break the library in any way
        problem = f"its schema can't be read: {type(error).__name__}: {error}"
    _log.warning("%s: its arguments aren't checked: %.500s", label, problem)
    return {"type": "object", "properties": {name: {} for name in properties}}


def _check(schema: dict[str, Any]) -> None:
    """Takes out references that lead back. Raises UnusableSchemaError."""
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise UnusableSchemaError(f"its schema is longer than {MAX_SCHEMA_CHARS} characters")
    try:
        compile_schema(schema)
    except jsonschema.SchemaError as error:
        raise UnusableSchemaError(f"its schema is no JSON Schema: {error.message:.200}") from error
    _References(schema).count(schema)


def _without_patterns(node: Any) -> Any:
    """A copy in which `pattern` is part of the description, and `patternProperties` allow what they allow."""
    if isinstance(node, list):
        return [_without_patterns(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        if key in _NAMED and isinstance(value, Mapping):
            made[key] = {name: _without_patterns(item) for name, item in value.items()}
        else:
            made[key] = value if key in _DATA else _without_patterns(value)
    for key in ("$id", "id"):  # References lead from the whole schema on.
        made.pop(key, None)
    pattern = made.get("pattern")
    if isinstance(pattern, str):
        del made["pattern"]
        made["description"] = f"{made.get('description', '')} Matches the pattern {pattern}".strip()
    if "patternProperties" in made:
        for key in ("patternProperties", "additionalProperties", "unevaluatedProperties"):
            made.pop(key, None)
    return made


class _References:
    """Follows the references of a schema, and takes out those that lead back to a schema that they are in."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._counts: dict[int, int] = {}
        self._open: set[int] = set()
        """The schemas that lead to the one that is looked at."""

    def count(self, node: Any) -> int:
        """How many schemas a value may be checked against. Raises UnusableSchemaError for too many."""
        if not isinstance(node, dict):
            return 1
        if id(node) not in self._counts:
            self._open.add(id(node))
            count = self._counts[id(node)] = 1 + sum(map(self.count, self._following(node)))
            self._open.remove(id(node))
            if count > MAX_CHECKS:
                raise UnusableSchemaError(f"its references lead to more than {MAX_CHECKS} schemas")
        return self._counts[id(node)]

    def _following(self, node: dict[str, Any]) -> Iterator[Any]:
        """The schemas that a value, or a part of it, is checked against next."""
        if isinstance(node.get("pattern"), str) or "patternProperties" in node:
            raise UnusableSchemaError("it refers to a part that is no schema")
        for key in _REFERENCES:
            if isinstance(reference := node.get(key), str):
                target = target_of(self._root, reference)
                if target is None:
                    raise UnusableSchemaError(f"it refers to {reference!r:.200}, which isn't in it")
                if id(target) in self._open:
                    del node[key]
                    node.setdefault("description", f"As {reference}")
                else:
                    yield target
        for key, value in node.items():
            if key in ("$defs", "definitions", *_DATA):
                continue
            if isinstance(value, Mapping):
                yield from value.values() if key in _NAMED else (value,)
            elif isinstance(value, list):
                yield from value


def target_of(schema: Any, reference: str) -> Any:
    """What a reference leads to inside of the schema, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    node = schema
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node
