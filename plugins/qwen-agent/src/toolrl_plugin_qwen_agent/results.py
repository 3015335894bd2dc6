"""What a tool's `call` returned, as an answer for the model.

| returned | becomes |
|---|---|
| text | itself |
| a list of ContentItem: text | its text, pieces joined by a line break |
| … image: a file, a `data:` URI | a Media, or a note in words where the model takes no images |
| … image: an address, file, audio, video | a note in words |
| anything else | its JSON, indented by four as Qwen-Agent's agents do |

Images are read at once and in a bounded size: their files are gone when the episode ends.
"""

from __future__ import annotations

import base64
import inspect
import json
from typing import Any
from urllib.parse import unquote, urlparse

from toolrl.types import Media, ToolResult
from toolrl_common.images import MAX_BYTES, read_image

KINDS = ("text", "image", "file", "audio", "video")
MAX_IMAGES = 16


def as_answer(value: Any, *, images: bool) -> ToolResult:
    """The answer of a returned value; blocks where it holds images. Raises TypeError for a value that isn't one."""
    if isinstance(value, str):
        return ToolResult(value)
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(f"call() gave a {type(value).__name__}: it has to return its result, not a promise of it")
    items = value if isinstance(value, list) else [value]
    if items and all(is_content(item) for item in items):
        return _from_items(items, images=images)
    return ToolResult(json.dumps(value, ensure_ascii=False, indent=4, default=_plain))


def is_content(value: Any) -> bool:
    """True for a ContentItem of qwen_agent."""
    return type(value).__name__ == "ContentItem" and all(hasattr(value, kind) for kind in KINDS)


def image_paths(value: Any) -> list[str]:
    """What the ContentItems of a returned value name as images."""
    items = value if isinstance(value, list) else [value]
    return [item.image for item in items if is_content(item) and item.image]


def _from_items(items: list[Any], *, images: bool) -> ToolResult:
    texts: list[str] = []
    media: list[Media] = []
    for item in items:
        kind = next((kind for kind in KINDS if getattr(item, kind) is not None), "text")
        given = getattr(item, kind)
        if kind == "text":
            texts.append(str(given or ""))
        elif kind != "image":
            texts.append(f"[{kind}: {_shown(given)}]")
        elif not images or len(media) >= MAX_IMAGES or _is_address(given):
            texts.append(f"[image: {_shown(given)}]")
        else:
            try:
                media.append(Media("image", image_of(given)))
            except ValueError as error:
                texts.append(f"[image that can't be shown: {error}]")
    return ToolResult("\n".join(texts), media=tuple(media))


def image_of(given: str) -> Any:
    """A PIL image of a path, a `file://` address or a `data:` URI. Raises ValueError."""
    if not given.startswith("data:"):
        return read_image(unquote(urlparse(given).path) if given.startswith("file://") else given)
    head, comma, body = given.partition(",")
    if not comma or not head.endswith(";base64") or len(body) > MAX_BYTES * 4 // 3:
        raise ValueError(f"its data: URI isn't base64, or has more than {MAX_BYTES} bytes")
    return read_image(base64.b64decode(body, validate=True))


def _is_address(given: str) -> bool:
    return given.startswith(("http://", "https://"))


def _shown(given: Any) -> str:
    text = str(given)
    if text.startswith("data:"):
        return f"{text.partition(',')[0][:80]}, {len(text)} characters"
    return text if len(text) <= 300 else f"{text[:300]}…"


def _plain(value: Any) -> Any:
    """What JSON can't hold by itself: pydantic models as dicts, all else as text."""
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)
