"""A function's signature as the spec that the model reads, and a call's arguments as Python values.

Hints become a pydantic model, the model a JSON Schema; descriptions of parameters come from the docstring (Google,
numpy or Sphinx style), unless `Field(description=…)`, in `Annotated` or as default, or `Annotated[..., "text"]` gives
one. The same pydantic model coerces the
arguments of each call. References to nested models are written out in place: chat templates don't follow `$ref`.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pydantic
from pydantic.fields import FieldInfo

from toolrl.errors import ArgumentsError
from toolrl.tools.callables import context_parameter, documentation, name_of, parameters_of, resolved_hints
from toolrl.tools.values import scalar
from toolrl.types import ToolSpec

MAX_PROBLEMS = 4
"""That an answer to bad arguments names."""
_VALUES = frozenset(
    ("default", "const", "enum", "examples", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
)
"""Keys of a schema whose values are no schemas; infinite and NaN ones are left out."""


class Signature:
    """The parameters of a tool function: the model's arguments, and the place of the episode's context."""

    def __init__(self, function: Callable[..., Any], name: str, description: str | None) -> None:
        self.injected = context_parameter(function)
        text, described = documentation(function)
        fields = _fields(function, self.injected, described)
        # Names of their own, because a pydantic field can't be called `schema`, `copy` or `_x` and a parameter can.
        self._names = [(name, f"p{index}") for index, name in enumerate(fields)]
        try:
            places = {place: fields[name] for name, place in self._names}
            self._model = pydantic.create_model(name, **places)  # type: ignore[call-overload]
            parameters = model_schema(self._model)
        except pydantic.PydanticUserError as error:
            reason = error.message.partition("\n")[0]
            raise TypeError(f"tool {name!r}: a parameter's type has no JSON Schema: {reason}") from error
        self.spec = ToolSpec(name, description if description is not None else text, parameters)

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function. Unknown ones are left out. Raises ArgumentsError."""
        values = validated(self._model, arguments, self.spec.name)
        return {name: getattr(values, place) for name, place in self._names}


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
        inlined["$defs"] = {name: _inline(definition, {}, ()) for name, definition in definitions.items()}
    return inlined


def _fields(
    function: Callable[..., Any], injected: str | None, described: Mapping[str, str]
) -> dict[str, tuple[Any, FieldInfo]]:
    """Fields for create_model by parameter. Their alias is the name that the model reads."""
    where = f"tool function {getattr(function, '__qualname__', name_of(function))!r}"
    parameters = {name: it for name, it in parameters_of(function).items() if name != injected}
    hints = resolved_hints(function, parameters, where)
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where}: parameter {str(parameter)!r}: a model names its arguments, so write them out")
        if name not in hints:
            raise TypeError(
                f"{where}: parameter {name!r} has no type hint, so it has no JSON Schema. "
                f"Write for example `{name}: str`."
            )
    return {name: _field(hints[name], name, it.default, described.get(name)) for name, it in parameters.items()}


def _field(hint: Any, name: str, default: Any, description: str | None) -> tuple[Any, FieldInfo]:
    """A parameter's type and field: name, default and description, joined with what `Field(…)` says, be it in
    `Annotated` or as default."""
    own = [it for it in getattr(hint, "__metadata__", ()) if isinstance(it, FieldInfo)]
    if isinstance(default, FieldInfo):
        own.append(default)
        hint, default = Annotated[hint, default], inspect.Parameter.empty
    aliases = (it.validation_alias for it in reversed(own) if isinstance(it.validation_alias, str))
    options: dict[str, Any] = {"alias": next(aliases, name)}
    if not any(it.description for it in own) and (text := _said(hint) or description):
        options["description"] = text
    if default is not inspect.Parameter.empty:
        return hint, pydantic.Field(default=scalar(default), **options)
    joined: Any = Annotated[hint, pydantic.Field(**options)]
    return hint, FieldInfo.from_annotation(joined)


def _said(hint: Any) -> str | None:
    """The description in `Annotated[int, "text"]` and `Annotated[int, Doc("text")]`, also beside None."""
    said = (getattr(it, "documentation", it) for it in getattr(hint, "__metadata__", ()))
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    return next((it for it in (*said, *map(_said, parts)) if isinstance(it, str)), None)


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inline({**definitions[name], **rest}, definitions, (*inside, name))
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties" and isinstance(value, dict):
            result[key] = {field: _inline(item, definitions, inside) for field, item in value.items()}
        elif key == "discriminator" and isinstance(value, dict):  # Its mapping refers to what is written out here.
            result[key] = {part: it for part, it in value.items() if part != "mapping"}
        elif key in _VALUES:
            if _is_json(value):
                result[key] = value
        else:
            result[key] = _inline(value, definitions, inside)
    if "default" in node and "default" not in result:
        result["description"] = f"{result.get('description', '')} Default: {node['default']!r}.".lstrip()
    return result


def _is_json(value: Any) -> bool:
    """False for infinity and NaN, which Python writes and no other reader takes."""
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return False


def _has_reference(schema: Mapping[str, Any]) -> bool:
    return '"$ref"' in json.dumps(schema, default=str)
