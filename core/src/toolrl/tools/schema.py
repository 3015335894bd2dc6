"""A function's signature as the spec that the model reads, and a call's arguments as Python values.

Hints become a pydantic model, the model a JSON Schema; descriptions of parameters come from the docstring (Google,
numpy or Sphinx style), unless `Annotated[..., Field(description=…)]` gives one. The same pydantic model coerces the
arguments of each call. References to nested models are written out in place: chat templates don't follow `$ref`.
"""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from pydantic.fields import FieldInfo

from toolrl.errors import ArgumentsError
from toolrl.protocols import EpisodeContext
from toolrl.types import ToolSpec

MAX_PROBLEMS = 4
"""That an answer to bad arguments names."""


class Signature:
    """The parameters of a tool function: the model's arguments, and the place of the episode's context."""

    def __init__(self, function: Callable[..., Any], name: str, description: str | None) -> None:
        self.injected = context_parameter(function)
        text, described = _read_docstring(function)
        fields = _fields(function, self.injected, described)
        self._names = [(field.alias or "", f"p{index}") for index, (_, field) in enumerate(fields.values())]
        try:
            self._model = pydantic.create_model(name, **fields)  # type: ignore[call-overload]
            parameters = model_schema(self._model)
        except pydantic.PydanticUserError as error:
            reason = error.message.partition("\n")[0]
            raise TypeError(f"tool {name!r}: a parameter's type has no JSON Schema: {reason}") from error
        self.spec = ToolSpec(name, description if description is not None else text, parameters)

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function. Unknown ones are left out. Raises ArgumentsError."""
        values = validated(self._model, arguments, self.spec.name)
        return {name: getattr(values, place) for name, place in self._names}


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated as EpisodeContext, or None.

    Looks at annotations as they are written, so that one imported under TYPE_CHECKING is found too.
    """
    for parameter in inspect.signature(function).parameters.values():
        annotation = parameter.annotation
        if annotation is EpisodeContext:
            return parameter.name
        if isinstance(annotation, str) and annotation.rpartition(".")[2] == "EpisodeContext":
            return parameter.name
    return None


def validated(model: type[pydantic.BaseModel], arguments: Mapping[str, Any], tool: str) -> pydantic.BaseModel:
    """Arguments as an instance of `model`. Raises ArgumentsError with a message for the model."""
    try:
        return model.model_validate(dict(arguments))
    except pydantic.ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']} (got {item['input']!r:.80})"
            for item in error.errors(include_url=False)[:MAX_PROBLEMS]
        ]
        if error.error_count() > MAX_PROBLEMS:
            problems.append(f"and {error.error_count() - MAX_PROBLEMS} more")
        raise ArgumentsError(f"Bad arguments for the tool {tool!r}: {'; '.join(problems)}.") from error


def model_schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model's input: one object, references written out, generated titles left out."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions, ())
    inlined.pop("description", None)
    inlined.setdefault("properties", {})
    if _has_reference(inlined):  # A recursive model can't be written out.
        inlined["$defs"] = definitions
    return inlined


def _fields(
    function: Callable[..., Any], injected: str | None, described: Mapping[str, str]
) -> dict[str, tuple[Any, FieldInfo]]:
    """Fields for create_model. They are named p0, p1 … with the parameter's name as alias, because a pydantic field
    can't be called `schema`, `copy` or `_x` and a parameter can."""
    where = f"tool function {getattr(function, '__qualname__', function)!r}"
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n != injected}
    hints = resolved_hints(function, parameters, where)
    fields: dict[str, tuple[Any, FieldInfo]] = {}
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where}: parameter {str(parameter)!r}: a model names its arguments, so write them out")
        if name not in hints:
            raise TypeError(
                f"{where}: parameter {name!r} has no type hint, so it has no JSON Schema. "
                f"Write for example `{name}: str`."
            )
        fields[f"p{len(fields)}"] = (hints[name], _field(hints[name], name, parameter.default, described.get(name)))
    return fields


def resolved_hints(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], where: str
) -> dict[str, Any]:
    """Hints as types. Only those of the model's parameters: others may name what exists for type checkers alone."""
    written = {n: p.annotation for n, p in parameters.items() if p.annotation is not inspect.Parameter.empty}
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not hasattr(inner, "__globals__"):
        inner = type(inner).__call__
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__=written), getattr(inner, "__globals__", {}), include_extras=True
        )
    except NameError as error:
        raise TypeError(
            f"{where}: the hint of a parameter can't be resolved: {error}. Define or import the type at module level."
        ) from error


def _field(hint: Any, name: str, default: Any, description: str | None) -> FieldInfo:
    """Name, default and description of a parameter, which pydantic joins with what `Annotated[..., Field(…)]` says."""
    options = {} if default is inspect.Parameter.empty else {"default": default}
    own = [it for it in getattr(hint, "__metadata__", ()) if isinstance(it, FieldInfo)]
    if description and not any(it.description for it in own):
        options["description"] = description
    field: FieldInfo = pydantic.Field(alias=name, **options)
    return field


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description before the sections, and the description of each parameter."""
    import docstring_parser

    text = inspect.getdoc(function) or ""
    parsed = docstring_parser.parse(text)
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    described = {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    return "\n\n".join(parts), {name: value for name, value in described.items() if value}


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inline({**definitions[name], **rest}, definitions, (*inside, name))
    result = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties" and isinstance(value, dict):
            result[key] = {field: _inline(item, definitions, inside) for field, item in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            result[key] = value
        else:
            result[key] = _inline(value, definitions, inside)
    return result


def _has_reference(schema: Mapping[str, Any]) -> bool:
    return '"$ref"' in json.dumps(schema, default=str)
