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

import attrs
import jsonschema

Keyword = Callable[[Any, Any, Any, Any], Iterator[jsonschema.ValidationError] | None]

_log = logging.getLogger(__name__)
_budgets: ContextVar[tuple[list[int], ...]] = ContextVar("_budgets", default=())
"""Evaluations of keywords that the check, and each that it is a part of, may still make."""


class TooCostlyError(ValueError):
    """A check evaluates more keywords than it may."""


@contextmanager
def at_most(evaluations: int) -> Iterator[None]:
    """Raise TooCostlyError inside the block after this many evaluations of keywords. Those in an inner block count for
    the outer ones as well."""
    token = _budgets.set((*_budgets.get(), [evaluations]))
    try:
        yield
    finally:
        _budgets.reset(token)


def _spend(evaluations: int) -> None:
    """Count work that takes as long as this many evaluations. Raises TooCostlyError if a bound is passed."""
    for left in _budgets.get():
        left[0] -= evaluations
        if left[0] < 0:
            raise TooCostlyError("it takes too long to check")


@functools.cache
def bounded(kind: Any) -> Any:
    """The validator class `kind` with bounded keywords."""
    keywords = {**kind.VALIDATORS, "pattern": _pattern, "patternProperties": _pattern_properties}
    keywords |= {"additionalProperties": _additional_properties, "uniqueItems": _unique_items}
    extend: Any = jsonschema.validators.extend
    made = extend(kind, {name: _counted(keyword) for name, keyword in keywords.items()})
    evolve = made.evolve

    def bounded_evolve(self: Any, **changes: Any) -> Any:
        # A subschema with a `$schema` of its own gets the plain class of that draft, with keywords that aren't bounded.
        other = evolve(self, **changes)
        if type(other) is made:
            return other
        fields = {it.alias: getattr(other, it.name) for it in attrs.fields(type(other)) if it.init}
        draft: Any = type(other)
        return bounded(draft)(**fields)

    made.evolve = bounded_evolve
    return made


def _counted(keyword: Keyword) -> Keyword:
    @functools.wraps(keyword)
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spend(1 + (len(value) if isinstance(value, list | str) else 0) // 16)
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
