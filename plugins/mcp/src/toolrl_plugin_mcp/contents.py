"""A server's result as an answer for the model.

| content | becomes |
|---|---|
| text | itself; several are joined by a blank line |
| image | a Media that the chat format hands to the model, or a note in words |
| embedded resource with a text | the text |
| embedded resource with bytes | as an image where it is one, else a note |
| link to a resource | a note with name, URI and description |
| audio, anything else | a note |
| no content but `structuredContent` | its JSON |

A result with `isError` is raised as a ToolError. All of it is bounded: what a server sends is text from outside.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toolrl.errors import ToolError
from toolrl.types import Media, ToolResult
from toolrl_common.images import read_image

MAX_IMAGES = 16
MAX_CHARS = 1_000_000
"""Of a result, before the policy counts its tokens."""


class _Image(NamedTuple):
    mime: str
    data: str
    """base64."""


def read_result(result: Mapping[str, Any], *, images: bool, hide: Callable[[str], str] = str) -> ToolResult:
    """The answer that a `CallToolResult`, as on the wire, is. Decodes images, so it belongs in a thread where there are
    any (`has_images`). Raises ToolError where the server says that the call failed."""
    texts: list[str] = []
    media: list[Media] = []
    pictures = 0
    for piece in map(_piece, result.get("content") or ()):
        if not isinstance(piece, _Image):
            texts.append(piece)
        elif not images:
            texts.append(_note("image", piece.mime, piece.data))
        elif (pictures := pictures + 1) <= MAX_IMAGES:
            try:
                media.append(Media("image", read_image(base64.b64decode(piece.data, validate=True))))
            except ValueError as error:
                texts.append(f"[image, {piece.mime or 'image'}, which can't be shown: {error}]")
    if pictures > MAX_IMAGES:
        texts.append(f"[{pictures - MAX_IMAGES} more images left out]")
    structured = result.get("structuredContent")
    if structured is not None and not texts and not media:
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = cut_middle("\n\n".join(texts), MAX_CHARS)
    if result.get("isError"):
        raise ToolError(hide(text) or "The tool failed and didn't say why.")
    return ToolResult(text, media=tuple(media))


def has_images(result: Mapping[str, Any]) -> bool:
    """Whether reading the result means decoding."""
    contents = result.get("content") or ()
    return any("data" in content or "blob" in (content.get("resource") or ()) for content in contents)


def cut_middle(text: str, limit: int) -> str:
    """A text of at most `limit` characters and a word on what is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _piece(content: Mapping[str, Any]) -> str | _Image:
    kind = content.get("type")
    if kind == "text":
        return str(content.get("text") or "")
    if kind == "image":
        return _Image(str(content.get("mimeType") or ""), str(content.get("data") or ""))
    if kind == "resource":
        return _resource(content.get("resource") or {})
    if kind == "resource_link":
        words = [str(content[key]) for key in ("name", "uri", "mimeType", "description") if content.get(key)]
        return f"[link to a resource: {', '.join(words)}]"
    if kind == "audio":
        return _note("audio", content.get("mimeType"), content.get("data"))
    return f"[{kind}: this kind of content can't be shown]"


def _resource(resource: Mapping[str, Any]) -> str | _Image:
    mime = str(resource.get("mimeType") or "")
    if "text" in resource:
        return str(resource["text"])
    if mime.startswith("image/"):
        return _Image(mime, str(resource.get("blob") or ""))
    return _note(f"resource {resource.get('uri')}", mime, resource.get("blob"))


def _size(data: str) -> int:
    """Bytes that a base64 text stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def _note(what: str, mime: Any, data: Any) -> str:
    size = _size(str(data or ""))
    return f"[{what}, {mime}, {size} bytes]" if mime else f"[{what}, {size} bytes]"
