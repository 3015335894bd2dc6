"""What the text of a parameter means under its JSON Schema.

A schema that allows a string and nothing else keeps the text. Otherwise the text is read as JSON, and the value counts
if the schema allows its type; if it is no JSON, or of another type, the text stays, and the executor's schema check
tells the model. JSON's grammar is the rule: Python's would also read `1_000`, `nan` and full-width digits. Only
`True`, `False`, `None` and `null` count in any case of letters, as vLLM and SGLang read them: chat templates write
values as Python does. A text in JSON's quotes stays as it is: the format writes strings without quotes, so these are
part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolrl_common.parsing.jsonvalue import JsonFault, read_json

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_NAMES = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip
"""What JSON Schema calls the types of JSON values."""
_DEPTH = 8
"""References and unions within each other that are followed."""


def declared(schema: Any, key: str, depth: int = _DEPTH) -> Any:
    """What a tool's schema says of the parameter `key`; None where it says nothing."""
    root = schema
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and "properties" not in schema and depth:
        schema, depth = _resolve(schema["$ref"], root), depth - 1
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def coerce(
    text: str, schema: Any, root: Mapping[str, Any], *, mend: Callable[[str], Any] | None = None
) -> tuple[Any, bool]:
    """The value of a parameter's text, and whether it had to be mended. `root` is what references start from; `mend`
    reads an object or a list that is not JSON and gives its value and end, or None."""
    types = allowed_types(schema, root)
    if not types - {"string"}:
        return text, False
    body = text.strip(" \t\r\n")
    word = body.lower() if len(body) <= 5 else ""
    if word in _WORDS:
        return (_WORDS[word], False) if _NAMES[type(_WORDS[word])] in types else (text, False)
    read: Any = read_json(body)
    mended = False
    if isinstance(read, JsonFault) and mend is not None and body[:1] in ("{", "["):
        read, mended = mend(body), True
    if not isinstance(read, tuple) or read[1] != len(body):
        return text, False
    value = read[0]
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)  # JSON Schema calls 3.0 an integer
    if isinstance(value, str):
        return text, False
    name = _NAMES[type(value)]
    return (value, mended) if name in types or (name == "integer" and "number" in types) else (text, False)


def allowed_types(schema: Any, root: Mapping[str, Any], depth: int = _DEPTH) -> set[str]:
    """The JSON types that a schema allows; empty where it says nothing that is understood."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in declared if isinstance(name, str)}
    if isinstance(schema.get("enum"), list):
        return {_NAMES.get(type(value), "object") for value in schema["enum"]}
    if "const" in schema:
        return {_NAMES.get(type(schema["const"]), "object")}
    if isinstance(schema.get("$ref"), str):
        return allowed_types(_resolve(schema["$ref"], root), root, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            return set().union(*(allowed_types(part, root, depth - 1) for part in schema[word]))
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _resolve(reference: str, root: Any) -> Any:
    """What `#` or `#/a/b` points to within the tool's own schema; None where it points elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(root, Mapping) or part not in root:
            return None
        root = root[part]
    return root
