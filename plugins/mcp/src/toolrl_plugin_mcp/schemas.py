"""Input schemas of servers, made fit to check arguments with.

The model reads regular expressions in descriptions, and the server checks them: many are JavaScript's, and Python's
take time without bound for some texts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from toolrl.tools.validation import compile_schema, is_valid

_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose keys are names and no keywords."""
_DATA = ("const", "default", "enum", "examples", "required", "type")
_PROBES: tuple[Any, ...] = (0, "", [], {})
_log = logging.getLogger(__name__)


def usable_schema(given: Any, label: str) -> dict[str, Any]:
    """A server's input schema, made one of type object whose required arguments are all named. Where it can't be used
    (it is no JSON Schema, or refers to what isn't in it), one that takes any arguments stands in, with a warning:
    the server checks them."""
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
        validator = compile_schema(schema)
        whole: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
        _check_references(schema, Registry().resolver_with_root(whole))
        for value in ({}, *({name: of} for name in properties for of in _PROBES)):
            is_valid(validator, value)
    except Exception as error:  # noqa: BLE001 - a schema from outside can break the library in any way
        problem = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        _log.warning("%s: its arguments aren't checked: its schema can't be used: %.500s", label, problem)
        return {"type": "object", "properties": {name: {} for name in properties}}
    return schema


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


def _check_references(node: Any, resolver: Any) -> None:
    """Raises where the schema refers to what isn't in it, before an argument first meets the reference."""
    if isinstance(node, Mapping):
        if isinstance(reference := node.get("$ref"), str):
            resolver.lookup(reference)
        node = list(node.values())
    for item in node if isinstance(node, list) else ():
        _check_references(item, resolver)
