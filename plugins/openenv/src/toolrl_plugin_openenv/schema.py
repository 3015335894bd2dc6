"""What an OpenEnv server says of its actions, from its page `/schema`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ConfigError, ToolsetError
from toolrl.tools.threads import POOL
from toolrl_plugin_openenv.connection import Address

MAX_BYTES = 8 * 2**20


class SchemaError(ToolsetError):
    """The page isn't there, or isn't what it should be."""


@dataclass(frozen=True)
class Field:
    """A field of an action."""

    name: str
    kind: str | None
    """Its JSON Schema type, None for anything."""


async def action_schema(address: Address) -> dict[str, Any]:
    """The JSON Schema of the environment's action, without `metadata`. Raises SchemaError."""
    page = await POOL.submit(_fetch, address)
    schema = page.get("action")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise SchemaError(f"{address.shown}/schema describes no action")
    properties = {name: part for name, part in schema["properties"].items() if name != "metadata"}
    return {**schema, "type": "object", "properties": properties}


def pick_field(schema: Mapping[str, Any], wanted: str | None, where: str | None) -> Field:
    """The field that takes what the model says. Raises ConfigError where that isn't clear."""
    properties = schema["properties"]
    if wanted is None:
        required = [name for name in schema.get("required") or () if name in properties]
        candidates = required if len(required) == 1 else list(properties)
        if len(candidates) != 1:
            raise ConfigError(
                f"the environment's action has the fields {', '.join(properties) or 'none'}; which one takes what the "
                "model says?",
                where=where,
                hint="Set `action.field`, and the others by `action.constants`; or use `mode: action`.",
            )
        wanted = candidates[0]
    if wanted not in properties:
        raise ConfigError(
            f"the environment's action has no field {wanted!r}; it has {', '.join(properties) or 'none'}",
            where=where,
            hint="Change `action.field`.",
        )
    part = properties[wanted]
    kind = part.get("type") if isinstance(part, Mapping) else None
    return Field(wanted, kind if isinstance(kind, str) else None)


def _fetch(address: Address) -> dict[str, Any]:
    """Blocks: run it in a thread."""
    request = urllib.request.Request(address.http("/schema"), headers=dict(address.headers))
    handlers = [urllib.request.ProxyHandler({})] if address.is_loopback else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=address.connect_timeout) as response:
            page = json.loads(response.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SchemaError(f"{address.shown}/schema can't be read: {type(error).__name__}: {error}") from error
    if not isinstance(page, dict):
        raise SchemaError(f"{address.shown}/schema is a {type(page).__name__}, expected an object")
    return page
