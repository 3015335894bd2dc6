"""What a tool's `call` returned or raised, as an answer for the model.

| returned | becomes |
|---|---|
| text | itself |
| a list of ContentItem: text | its text, pieces joined by a line break |
| … image: a file, a `data:` URI | a Media, or a note in words where the model takes no images |
| … image: an address, file, audio, video | a note in words |
| anything else | its JSON, indented by four as Qwen-Agent's agents do |

Images are read at once and in a bounded size: their files are gone when the episode ends.

Tools of Qwen-Agent have no error of their own for what the model should read: they raise whatever is at hand, and the
agent hands the model all of it, traceback included. Here errors of values, checks, files and services become a
ToolError; all others (a KeyError, an AttributeError …) are mistakes in the tool's code and count as a crash of it.
"""

from __future__ import annotations

import base64
import inspect
import json
from typing import Any
from urllib.parse import unquote, urlparse

import jsonschema

from toolrl.errors import ArgumentsError, ToolError, ToolrlError
from toolrl.types import Media, ToolResult
from toolrl_common.images import MAX_BYTES, read_image

KINDS = ("text", "image", "file", "audio", "video")
MAX_IMAGES = 16
_SERVICE = {"ToolServiceError", "ModelServiceError", "DocParserError", "ParserError"}
_BUSY = {"408", "425", "429", "500", "502", "503", "504"}
_LOST = {"ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"}
"""Of the library `requests`, which need not be installed."""
LONGEST = 4000
"""Characters of an error that the model is given."""


def as_answer(value: Any, *, images: bool) -> ToolResult:
    """The answer of a returned value; blocks where it holds images. Raises TypeError for a promise of one."""
    if isinstance(value, str):
        return ToolResult(value)
    if inspect.isawaitable(value) or inspect.isgenerator(value):
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


def error_for_model(error: Exception) -> Exception:
    """What to raise in its place: a ToolError, or itself where it counts as a crash."""
    if isinstance(error, ToolrlError):
        return error
    if isinstance(error, jsonschema.ValidationError):
        place = "".join(f"[{step!r}]" for step in error.absolute_path)
        return ArgumentsError(_cut(f"Bad arguments{f' at {place}' if place else ''}: {error.message}"))
    if isinstance(error, AssertionError):
        return ToolError(_cut(f"The tool refused the call: {str(error) or 'a check failed.'}"))
    names = {base.__name__ for base in type(error).__mro__}
    # These say something of the call, and not of the tool's code.
    meant = isinstance(error, ValueError | OSError | RuntimeError)
    if names & _SERVICE or (meant and not isinstance(error, NotImplementedError | RecursionError)):
        words = str(error).strip() or "no further words."
        return ToolError(_cut(f"{type(error).__name__}: {words}"), transient=_may_pass(error))
    return error


def _may_pass(error: Any) -> bool:
    """True where the same call may succeed later."""
    inner = getattr(error, "exception", None)
    if isinstance(inner, Exception) and inner is not error:
        return _may_pass(inner)
    code = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    lost = type(error).__module__.startswith("requests.") and any(b.__name__ in _LOST for b in type(error).__mro__)
    return str(code) in _BUSY or lost or isinstance(error, ConnectionError | TimeoutError)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
