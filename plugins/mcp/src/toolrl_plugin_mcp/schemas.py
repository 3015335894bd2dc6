"""Input schemas of servers, made fit to check arguments with.

A schema is text from outside, and checking runs on the event loop. So what could hold that up is taken out or not used:

- regular expressions, some of which take for ever on some texts: they are told to the model and checked by the server;
- references by which one argument would be checked against very many schemas, or without end;
- references to other documents.

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
MAX_RETURNS = 100
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names and no keywords."""
_DATA = ("const", "default", "enum", "examples", "required", "type")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ITEMS = ("items", "prefixItems", "contains", "additionalItems", "unevaluatedItems")
_MEMBERS = ("additionalProperties", "unevaluatedProperties")
"""Keywords whose schemas are for parts of the value."""
Step = tuple[int, str]
"""From a value to a part of it: by which schema, and to which."""
Part = tuple[Step, ...]
_log = logging.getLogger(__name__)


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
        problem = _problem(schema)
    except Exception as error:  # noqa: BLE001 - a schema from outside can break the library in any way
        problem = f"its schema can't be read: {type(error).__name__}: {error}"
    if problem is None:
        return schema
    _log.warning("%s: its arguments aren't checked: %.500s", label, problem)
    return {"type": "object", "properties": {name: {} for name in properties}}


def _problem(schema: dict[str, Any]) -> str | None:
    """Why a schema can't be used, or None."""
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        return f"its schema is longer than {MAX_SCHEMA_CHARS} characters"
    try:
        compile_schema(schema)
    except jsonschema.SchemaError as error:
        return f"its schema is no JSON Schema: {error.message:.200}"
    return _Costs(schema).problem()


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


class _Costs:
    """How many schemas a value may be checked against, with every reference followed. A schema that refers to itself
    for a part of the value, as those of trees do, ends with the value. Two that do so for one part would be checked
    twice as often with each level of it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._count = 0
        self._returns: list[Part] = []
        """The parts for which a schema refers to one that it is in."""

    def problem(self) -> str | None:
        """Why it takes too long, or None."""
        return self._visit(self._root, (), {"#": ()})

    def _visit(self, node: Any, part: Part, around: dict[str, Part]) -> str | None:
        """`around`: the references that led here, each with the part of the value for which it was followed."""
        self._count += 1
        if self._count > MAX_CHECKS:
            return f"its references lead to more than {MAX_CHECKS} schemas"
        if not isinstance(node, Mapping):
            return None
        for key in _REFERENCES:
            if isinstance(node.get(key), str) and (problem := self._follow(node[key], part, around)) is not None:
                return problem
        for step, child in _children(node):
            below = (*part, (id(node), step)) if step else part
            if (problem := self._visit(child, below, around)) is not None:
                return problem
        return None

    def _follow(self, reference: str, part: Part, around: dict[str, Part]) -> str | None:
        if reference not in around:
            target = target_of(self._root, reference)
            if target is None:
                return f"it refers to {reference!r:.200}, which isn't in it"
            return self._visit(target, part, {**around, reference: part})
        if around[reference] == part:
            return "it refers to itself for one and the same value"
        if len(self._returns) >= MAX_RETURNS or any(_overlap(part, other) for other in self._returns):
            return "it refers to itself twice for one part of the value"
        self._returns.append(part)
        return None


def _overlap(one: Part, other: Part) -> bool:
    """Whether a value may have a part that is both, or in both."""
    return all(map(_same, one, other))


def _same(one: Step, other: Step) -> bool:
    if one[1] == other[1]:
        return True
    # What `properties` doesn't name, beside it; in another schema it may be anything.
    members = "{}" in (one[1], other[1]) and "[]" not in (one[1], other[1])
    return members and one[0] != other[0]


def _children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(part of the value, its schema); an empty part is the value itself."""
    for key, value in node.items():
        if key in ("$defs", "definitions") or key in _DATA:
            continue
        if key == "properties" and isinstance(value, Mapping):
            yield from ((f".{name}", item) for name, item in value.items())
        elif key in _NAMED and isinstance(value, Mapping):
            yield from (("", item) for item in value.values())
        else:
            step = "[]" if key in _ITEMS else "{}" if key in _MEMBERS else ""
            yield from ((step, item) for item in (value if isinstance(value, list) else [value]))


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
