"""What servers get wrong, mended before the SDK looks at it.

The SDK refuses a whole list where one tool is described wrongly, and a whole result where one piece of it is of a kind
that it doesn't know. A model is better off with the other tools and the other pieces. So a tool keeps what is used of
it and is well formed, and a piece that can't be read becomes a note.
"""

from __future__ import annotations

from typing import Any

_TEXTS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}
"""Kinds of pieces, and the texts without which each is none."""


def mend_result(result: Any) -> None:
    """Mend a response's `result` in place: a list of tools, or what a tool answered; anything else stays as it is."""
    if not isinstance(result, dict):
        return
    if isinstance(result.get("tools"), list):
        tools = (tool for tool in result["tools"] if isinstance(tool, dict))
        result["tools"] = [_tool(tool) for tool in tools if isinstance(tool.get("name"), str)]
    structured = result.get("structuredContent")
    if structured is not None or "isError" in result:
        result.setdefault("content", [])
    if structured is not None and not isinstance(structured, dict):
        result["structuredContent"] = {"result": structured}
    if isinstance(result.get("content"), list):
        result["content"] = [_piece(piece) for piece in result["content"]]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """What is used of a tool; not its output schema: an answer that doesn't fit it is an answer all the same."""
    kept = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    kept["inputSchema"] = _object_schema(tool.get("inputSchema"))
    hints = tool.get("annotations")
    if isinstance(hints, dict):
        wanted = ("readOnlyHint", "idempotentHint")
        kept["annotations"] = {key: hints[key] for key in wanted if isinstance(hints.get(key), bool)}
    return kept


def _object_schema(schema: Any) -> dict[str, Any]:
    made = {**schema, "type": "object"} if isinstance(schema, dict) else {"type": "object"}
    if not isinstance(made.get("properties", {}), dict):
        del made["properties"]
    if "required" in made:
        required = made["required"] if isinstance(made["required"], list) else ()
        made["required"] = [name for name in required if isinstance(name, str)]
    if not isinstance(made.get("$schema", ""), str):
        del made["$schema"]
    return made


def _piece(piece: Any) -> dict[str, Any]:
    kind = piece.get("type") if isinstance(piece, dict) else None
    if kind == "resource" and _is_resource(piece.get("resource")):
        return {"type": kind, "resource": _texts(piece["resource"])}
    if isinstance(kind, str) and kind in _TEXTS and all(isinstance(piece.get(key), str) for key in _TEXTS[kind]):
        return _texts(piece)
    return {"type": "text", "text": f"[{kind!s:.40}: this piece of the answer can't be shown]"}


def _is_resource(resource: Any) -> bool:
    if not isinstance(resource, dict) or not isinstance(resource.get("uri"), str):
        return False
    return isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str)


def _texts(value: dict[str, Any]) -> dict[str, Any]:
    """All that is used of a piece is text."""
    return {key: text for key, text in value.items() if isinstance(text, str)}
