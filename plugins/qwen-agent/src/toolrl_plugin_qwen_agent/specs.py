"""The spec of a Qwen-Agent tool: both forms of its `parameters` as a JSON Schema.

The old form is a list of `{name, type, description, required}`; the new one is a JSON Schema of type object.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.tools.traits import check_tool_name
from toolrl.tools.validation import compile_schema
from toolrl.types import ToolSpec

_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
"""What authors of the list form write, to JSON Schema's word."""
_KNOWN = {"string", "integer", "number", "boolean", "array", "object", "null"}


def spec_of(tool: Any, shown: str | None = None) -> ToolSpec:
    """The spec of a tool object, under the name `shown` or its own. Raises ValueError for a name that can't be used or
    parameters that are no schema."""
    name = shown or str(tool.name)
    check_tool_name(name)
    parameters = schema_of(tool.parameters)
    try:
        compile_schema(parameters)
    except Exception as error:  # SchemaError, or whatever a broken schema breaks
        raise ValueError(f"its parameters are no JSON Schema: {getattr(error, 'message', error)}") from error
    return ToolSpec(name, _description(tool), parameters)


def schema_of(parameters: Any) -> dict[str, Any]:
    """`parameters` of a tool as a JSON Schema of type object. Raises ValueError."""
    if isinstance(parameters, Mapping):
        schema = copy.deepcopy(dict(parameters))
        if schema.setdefault("type", "object") != "object":
            raise ValueError(f"its parameters are of type {schema['type']!r:.80}, expected 'object'")
        schema.setdefault("properties", {})
        return schema
    if isinstance(parameters, Sequence) and not isinstance(parameters, str):
        return _from_list(parameters)
    raise ValueError(f"its parameters are {type(parameters).__name__}, expected a list of dicts or a JSON Schema")


def _from_list(parameters: Sequence[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for number, item in enumerate(parameters):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise ValueError(f"parameter {number} is {item!r:.80}, expected a dict with a name")
        schema = {key: copy.deepcopy(value) for key, value in item.items() if key not in ("name", "required", "type")}
        if "type" in item:
            schema.update(_type(item["type"]))
        # In a nested schema `required` is a list; beside a name it is a yes or no.
        if isinstance(item.get("required"), list):
            schema["required"] = list(item["required"])
        elif item.get("required"):
            required.append(item["name"])
        properties[item["name"]] = schema
    return {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}


def _type(given: Any) -> dict[str, Any]:
    """`type` in JSON Schema's words; nothing for a word that JSON Schema hasn't, such as `file` or `any`."""
    if isinstance(given, str):
        word = _TYPES.get(given.lower(), given.lower())
        return {"type": word} if word in _KNOWN else {}
    return {}


def _description(tool: Any) -> str:
    given = str(tool.description or "").strip()
    return given or inspect.cleandoc(type(tool).__doc__ or "")
