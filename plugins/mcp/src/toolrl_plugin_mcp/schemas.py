"""Input schemas of servers, made fit to check arguments with.

Regular expressions are told to the model and checked by the server: many are JavaScript's, which Python can't compile.
Where a schema can't be used, one that takes any arguments stands in for it, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from toolrl.tools.validation import compile_schema

_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose keys are names and no keywords."""
_DATA = ("const", "default", "enum", "examples", "required", "type")
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
    """Raises UnusableSchemaError."""
    try:
        validator = compile_schema(schema)
        whole = Registry().with_resource("", Resource.from_contents(schema, default_specification=DRAFT202012))
        for reference in _references(schema):
            whole.resolver().lookup(reference)
        properties = schema.get("properties", {})
        for value in ({}, *({name: of} for name in properties for of in (0, "", [], {}))):
            validator.is_valid(value)
    except jsonschema.SchemaError as error:
        raise UnusableSchemaError(f"its schema is no JSON Schema: {error.message:.200}") from error
    except RecursionError as error:
        raise UnusableSchemaError("it refers to itself without end") from error
    except Unresolvable as error:
        raise UnusableSchemaError(f"it refers to {error.ref!r:.200}, which isn't in it") from error


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
    pattern = made.get("pattern")
    if isinstance(pattern, str):
        del made["pattern"]
        made["description"] = f"{made.get('description', '')} Matches the pattern {pattern}".strip()
    if "patternProperties" in made:
        for key in ("patternProperties", "additionalProperties", "unevaluatedProperties"):
            made.pop(key, None)
    return made


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        yield from (node[key] for key in ("$ref", "$dynamicRef") if isinstance(node.get(key), str))
        named = [list(node[key].values()) for key in _NAMED if isinstance(node.get(key), Mapping)]
        node = [*named, *(value for key, value in node.items() if key not in (*_NAMED, *_DATA))]
    for item in node if isinstance(node, list) else ():
        yield from _references(item)
