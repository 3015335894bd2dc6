"""JSON Schema's keywords with a bound on their work, as schemas come from servers and arguments from the model.

jsonschema takes time without bound for some of both: a tree of `$ref`, `pattern` with nested repetition, `uniqueItems`
over objects. Here each keyword that is evaluated counts, patterns run by RE2 in linear time, and items are unique by
their text.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jsonschema

Keyword = Callable[[Any, Any, Any, Any], Iterator[jsonschema.ValidationError] | None]

_log = logging.getLogger(__name__)
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)
"""Evaluations of keywords that the present check may still make."""


class TooCostlyError(Exception):
    """A check evaluates more keywords than it may."""


@contextmanager
def at_most(evaluations: int) -> Iterator[None]:
    """Within it a validator raises TooCostlyError after so many evaluations of keywords."""
    token = _left.set([evaluations])
    try:
        yield
    finally:
        _left.reset(token)


def bounded(kind: Any) -> Any:
    """The validator class `kind` with bounded keywords."""
    keywords = {**kind.VALIDATORS, "pattern": _pattern, "patternProperties": _pattern_properties}
    keywords |= {"additionalProperties": _additional_properties, "uniqueItems": _unique_items}
    extend: Any = jsonschema.validators.extend
    return extend(kind, {name: _counted(keyword) for name, keyword in keywords.items()})


def _counted(keyword: Keyword) -> Keyword:
    @functools.wraps(keyword)
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        left = _left.get()
        if left is not None:
            left[0] -= 1 + (len(value) if isinstance(value, list | str) else 0) // 16
            if left[0] < 0:
                raise TooCostlyError
        return keyword(validator, value, instance, schema)

    return counted


@functools.lru_cache(1024)
def _search(pattern: str) -> Callable[[str], Any]:
    """Searches a text for a pattern. One that RE2 doesn't know (a look-ahead, a back reference) is found everywhere."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    try:
        found: Callable[[str], Any] = re2.compile(pattern, options).search
    except re2.error:
        _log.warning("arguments aren't checked against the pattern %.200r: not a valid RE2 pattern", pattern)
        return lambda text: True
    return lambda text: found(text.encode(errors="replace").decode())


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not _search(pattern)(instance):
        yield jsonschema.ValidationError(f"{instance!r:.100} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    for pattern, subschema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _search(pattern)(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [it for it in instance if it not in known and not any(_search(pattern)(it) for pattern in patterns)]
    if isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        shown = ", ".join(repr(name) for name in sorted(extra))
        verb = "was" if len(extra) == 1 else "were"
        yield jsonschema.ValidationError(f"Additional properties are not allowed ({shown} {verb} unexpected)")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if not wanted or not isinstance(instance, list):
        return
    seen: set[str] = set()
    for item in instance:
        text = json.dumps(_normal(item), sort_keys=True)
        if text in seen:
            yield jsonschema.ValidationError(f"has non-unique elements: {text:.100} twice")
            return
        seen.add(text)


def _normal(value: Any) -> Any:
    """Equal values of JSON in one form: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value
