"""Arguments against a tool's JSON Schema, with a message that the model can act on.

The message has what jsonschema says of each wrong argument, and the whole right form. Unknown arguments pass unless the
schema forbids them.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from toolrl.errors import ArgumentsError
from toolrl.tools.schema import MAX_PROBLEMS
from toolrl.tools.schema_keywords import TooCostlyError, at_most, bounded
from toolrl.types import ToolSpec

FEW_EVALUATIONS = 500
MOST_EVALUATIONS = 200_000
"""Maximum number of keywords that a check evaluates, on the event loop and in a thread: a second or two."""
CATALOGUE_EVALUATIONS = 3_000_000
"""Maximum number of keywords that are evaluated to check all schemas of a server: a minute."""
MAX_TOOLS = 500
"""Tools that a server may offer: each stands in every prompt, and has a schema that is checked."""
LARGE_SCHEMA = 50_000
LARGE_ARGUMENTS = 10_000
"""Characters above which the check runs in a thread."""


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """A validator that follows no reference to other documents. Raises jsonschema.SchemaError, and TooCostlyError for a
    schema that takes too long to check."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # As `kind.check_schema`, which has no bound.
    meta = bounded(jsonschema.validators.validator_for(kind.META_SCHEMA, default=kind))
    with check_bound():
        for error in meta(kind.META_SCHEMA, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER).iter_errors(schema):
            raise jsonschema.SchemaError.create_from(error)
    validator: Validator = bounded(kind)(schema, registry=REGISTRY)
    return validator


def check_bound() -> AbstractContextManager[None]:
    """Bounds one check; past it, checking raises TooCostlyError, a ValueError."""
    return at_most(MOST_EVALUATIONS)


def catalogue_bound() -> AbstractContextManager[None]:
    """Bounds the checks of all schemas of one server, as the run waits for them at its start."""
    return at_most(CATALOGUE_EVALUATIONS)


def is_valid(validator: Validator, value: Any) -> bool:
    """Whether a value fits. Raises TooCostlyError if that takes too long to find out."""
    with check_bound():
        return validator.is_valid(value)


@functools.lru_cache(1024)
def _compiled(schema: str) -> Validator:
    """By what the schema says: specs that are made anew for each episode share a validator."""
    return compile_schema(json.loads(schema))


async def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any], shown: str) -> None:
    """Raises ArgumentsError if the arguments don't fit or the check is too costly, TypeError if the spec's parameters
    aren't a JSON Schema; `shown` is the name that the model knows."""
    schema = json.dumps(spec.parameters, default=str)
    try:
        # Most checks take less time than a thread does. The rest leaves the event loop to the other episodes.
        if len(schema) > LARGE_SCHEMA or _size(arguments, LARGE_ARGUMENTS) > LARGE_ARGUMENTS:
            problems = await asyncio.to_thread(_problems, schema, arguments, MOST_EVALUATIONS)
        else:
            try:
                problems = _problems(schema, arguments, FEW_EVALUATIONS)
            except TooCostlyError:
                problems = await asyncio.to_thread(_problems, schema, arguments, MOST_EVALUATIONS)
    except jsonschema.SchemaError as error:  # Its own text writes the whole schema out.
        raise TypeError(f"its parameters are no JSON Schema: {error.message:.200}") from error
    except (RecursionError, ArithmeticError, ValueError):  # TooCostlyError is a ValueError.
        # jsonschema computes with numbers as they are: `multipleOf` with infinity, or with an integer of 400 digits.
        raise ArgumentsError(
            f"The arguments for the tool {shown!r} could not be checked: too large, or its schema is too complex. "
            f"Send fewer or simpler ones. Right form: {arguments_form(spec)}"
        ) from None
    if not problems:
        return
    text = "; ".join(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        text += f"; and {len(problems) - MAX_PROBLEMS} more"
    raise ArgumentsError(f"Bad arguments for the tool {shown!r}: {text}. Right form: {arguments_form(spec)}")


def _problems(schema: str, arguments: Mapping[str, Any], evaluations: int) -> list[str]:
    """The problems of arguments, each once."""
    with at_most(evaluations):
        return list(dict.fromkeys(_problem(error) for error in _compiled(schema).iter_errors(arguments)))


def _size(value: Any, most: int) -> int:
    """The number of characters and values in arguments, counted no further than `most`."""
    total, left = 0, [value]
    while left and total <= most:
        item = left.pop()
        total += len(item) if isinstance(item, str) else 1
        if isinstance(item, Mapping):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
    return total


def arguments_form(spec: ToolSpec) -> str:
    """A tool's arguments in one line: `{"query": string, "topk": integer (optional)}`; `{…}` where its parameters are
    no JSON Schema."""
    try:
        properties = spec.parameters.get("properties") or {}
        required = spec.parameters.get("required") or ()
        parts = [
            f'"{name}": {_type(schema)}{"" if name in required else " (optional)"}'
            for name, schema in properties.items()
        ]
        return "{" + ", ".join(parts) + "}"
    except (AttributeError, TypeError, ValueError, RecursionError):
        return "{…}"


def _problem(error: jsonschema.ValidationError) -> str:
    where = ""
    for part in error.absolute_path:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    return f"{where!r}: {error.message:.200}" if where else f"{error.message:.200}"


def _type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[key]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and "items" in schema:
        return f"[{_type(schema['items'])}, ...]"
    return str(kind)
