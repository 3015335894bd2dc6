"""The JSON Schema of a config: the frame, and the options of every installed component.

An editor that knows it completes section names, component names after `use:`, and the options of the component that was
named. It is made from the same models that check a config, so schema and check agree.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from toolrl.config.components import component_fields, options_model
from toolrl.config.sections import whole_config
from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import PluginError
from toolrl.kinds import KINDS
from toolrl.plugins.registry import RegisteredComponent, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE = r"\$\{"


def config_schema(registry: Registry) -> tuple[dict[str, Any], list[str]]:
    """The schema, and a line for each component whose options couldn't be read: it takes any options there."""
    config, _ = whole_config(registry, {})
    schema = config.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema["$defs"]
    problems: list[str] = []
    definitions["PolicyOptions"] = _schema_of(PolicyOptions, "PolicyOptions", definitions)
    definitions["ToolUse"]["properties"]["policy"] = {"$ref": "#/$defs/PolicyOptions"}
    forms: dict[str, tuple[str, str]] = {}
    for model, name, kind in component_fields(config):
        owner = schema if model is config else definitions[model.__name__]
        field = owner["properties"][name]
        named = set(_references(field))
        if not named:
            continue  # A field of plain text, which names a component without options.
        uses = {}
        for form in sorted(named):
            use = kind if forms.setdefault(kind, (kind, form))[1] == form else f"{kind}.{form}"
            forms[use] = kind, form
            uses[f"#/$defs/{form}"] = f"#/$defs/{use}"
        owner["properties"][name] = _redirected(field, uses)
    for use, (kind, form) in forms.items():
        definitions[use] = _use_of(kind, copy.deepcopy(definitions[form]), registry, definitions, problems)
    for form in {form for _, form in forms.values()}:
        del definitions[form]
    _allow_variables(schema)
    whole = {"$schema": DIALECT, "title": "toolrl config", **{k: v for k, v in schema.items() if k != "title"}}
    return whole, list(dict.fromkeys(problems))  # each form of a kind has all its components


def _references(node: Any) -> Iterator[str]:
    """The names of the definitions that a field's schema refers to."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        node = list(node.values())
    for item in node if isinstance(node, list) else ():
        yield from _references(item)


def _redirected(node: Any, targets: Mapping[str, str]) -> Any:
    """A field's schema with its component forms replaced by a kind's."""
    if isinstance(node, dict):
        if "$ref" in node:
            return {**node, "$ref": targets[node["$ref"]]}
        return {key: _redirected(item, targets) for key, item in node.items()}
    return [_redirected(item, targets) for item in node] if isinstance(node, list) else node


def _use_of(
    kind: str, form: dict[str, Any], registry: Registry, definitions: dict[str, Any], problems: list[str]
) -> dict[str, Any]:
    """A component of one kind: a bare name, or `{use, options}` with the options of that component."""
    choices = []
    cases = []
    for found in registry.components(kind):
        names = [name for name in (found.component.name, found.qualified) if _means(registry, kind, name, found)]
        choices += names
        options = _options_of(kind, found, definitions, problems)
        cases.append(
            {
                "if": {"properties": {"use": {"enum": names}}, "required": ["use"]},
                "then": {"properties": {"options": options}},
            }
        )
    installed = {"enum": sorted(choices), "description": f"An installed {KINDS[kind].label}."}
    # A name may also come from an environment variable.
    name = {"anyOf": [installed, {"type": "string", "pattern": _VARIABLE}]}
    form["properties"]["use"] = name
    if cases:
        form["allOf"] = cases
    return {"anyOf": [name, form]}


def _means(registry: Registry, kind: str, name: str, found: RegisteredComponent) -> bool:
    try:
        return registry.get(kind, name) == found
    except PluginError:
        return False


def _options_of(
    kind: str, found: RegisteredComponent, definitions: dict[str, Any], problems: list[str]
) -> dict[str, Any]:
    try:
        model = options_model(found.component)
    except PluginError as error:
        problems.append(f"{found.qualified}: {error.message}")
        return {"type": "object", "description": "Its options couldn't be read."}
    if model is None:
        return {"type": "object", "maxProperties": 0, "description": f"{found.component.name} takes no options."}
    name = f"{kind}.{found.plugin.name}.{found.component.name}"
    definitions[name] = _schema_of(model, name, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _schema_of(model: type[BaseModel], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A model's schema; the models inside it are added to `definitions` under its name."""
    schema = model.model_json_schema(by_alias=True, ref_template=f"#/$defs/{name}.{{model}}")
    for inner, value in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = value
    return schema


def _allow_variables(node: Any) -> None:
    """Wherever a number or a truth value is asked for, text with `${NAME}` will do."""
    if isinstance(node, dict):
        if node.get("type") in ("integer", "number", "boolean"):
            node["type"] = [node["type"], "string"]
            node["pattern"] = _VARIABLE
        for item in node.values():
            _allow_variables(item)
    elif isinstance(node, list):
        for item in node:
            _allow_variables(item)
