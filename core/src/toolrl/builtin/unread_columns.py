"""Remarks on columns that other projects' readers show to the model and this one doesn't."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolrl.chat.row_remarks import remark
from toolrl.types import Message

_SYSTEM = "makes no system message; `fields: {{system: {0}}}` does"
_IMAGE = "isn't shown to the model; `fields: {{images: {0}}}` shows it"
_MEDIA = "isn't shown to the model; the data set `verl` reads videos"
_FORMAT = "has no effect; the environment's `chat_format` has such options"
_COLUMNS = {
    "system": _SYSTEM,
    "system_prompt": _SYSTEM,
    "image": _IMAGE,
    "video": _MEDIA,
    "videos": _MEDIA,
    "audio": "isn't shown to the model",
    "audios": "isn't shown to the model",
    "history": "isn't shown to the model; put earlier turns into `messages`",
    "functions": "holds schemas, which aren't shown: the environment has the tools",
    "chat_template_kwargs": _FORMAT,
    "enable_thinking": _FORMAT,
}
"""Columns of OpenAI's, LLaMA-Factory's, ms-swift's, TRL's, verl's and other data, and what becomes of them."""


def remark_on_columns(row: Mapping[str, Any], used: Collection[str], messages: Sequence[Message]) -> None:
    """Remark on columns that hold something and of which nothing is read. `used` are those that fields name."""
    for name, text in _COLUMNS.items():
        if name in used or _is_empty(row.get(name)):
            continue
        if text is _SYSTEM and any(message.role == "system" for message in messages):
            continue
        if text is _IMAGE and any(message.media for message in messages):
            continue
        remark(f"column.{name}", f"{name!r} {text.format(name)}")
    if "instruction" in used and "input" not in used and not _is_empty(row.get("input")):
        remark("column.input", "'input' isn't shown to the model; `fields: {context: input}` shows it")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | Sequence | Mapping) and not value)
