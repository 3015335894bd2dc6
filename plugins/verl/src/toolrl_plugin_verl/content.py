"""Where media stand in the messages of a row: placeholders, and parts of a content that is a list."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from toolrl.errors import DataError
from toolrl.types import Media
from toolrl_plugin_verl.media import Kind, as_media

_PLACEHOLDER = re.compile("<(image|video)>")
_KINDS: tuple[Kind, ...] = ("image", "video")


class MediaQueue:
    """A row's images and videos, handed out to the placeholders in order."""

    def __init__(self, row: Mapping[str, Any], image_key: str, video_key: str) -> None:
        """Raises DataError for a cell that is no image or video."""
        keys: dict[Kind, str] = {"image": image_key, "video": video_key}
        self._given = {kind: _cells(kind, row, key) for kind, key in keys.items()}
        self._taken: Counter[str] = Counter()

    def has(self, kind: Kind) -> bool:
        """Whether the row has media of this kind at all: else `<image>` is plain text."""
        return bool(self._given[kind])

    def take(self, kind: Kind) -> Media:
        """The next one. Raises DataError where there is none left."""
        given, at = self._given[kind], self._taken[kind]
        if at == len(given):
            raise DataError(
                f"the messages have more <{kind}> than the row has {kind}s ({len(given)})",
                hint=f"Each <{kind}> stands for one entry of the column.",
            )
        self._taken[kind] += 1
        return given[at]

    def rest(self) -> list[Media]:
        """All of them where the messages have no placeholder. Raises DataError where they have too few."""
        for kind, given in self._given.items():
            if self._taken and self._taken[kind] < len(given):
                raise DataError(
                    f"the row has {len(given)} {kind}s, and its messages have fewer <{kind}>",
                    hint=f"Put one <{kind}> into the prompt for each, where it is to be seen.",
                )
        return [] if self._taken else [media for given in self._given.values() for media in given]


def split_content(item: Any, queue: MediaQueue, place: str) -> tuple[Any, list[Media]]:
    """A message whose content is one text with placeholders, and the media that stand there."""
    if not isinstance(item, Mapping):
        return item, []  # whoever reads it says what is wrong
    content = item.get("content")
    if isinstance(content, list):
        content, media = _from_parts(content, queue, f"{place}.content")
        return {**item, "content": content}, media
    if not isinstance(content, str):
        return item, []
    kinds = _PLACEHOLDER.findall(content)
    return item, [queue.take(kind) for kind in kinds if queue.has(kind)]


def _from_parts(parts: list[Any], queue: MediaQueue, place: str) -> tuple[str, list[Media]]:
    texts: list[str] = []
    media: list[Media] = []
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("image_url", "video_url"):
            kind = kind[:5]
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in _KINDS:
            texts.append(f"<{kind}>")
            own = {key: value for key, value in part.items() if key != "type" and value is not None}
            media.append(as_media(kind, own, f"{place}[{number}]") if own else queue.take(kind))
        else:
            raise DataError(f"'{place}[{number}]' is {part!r:.80}, expected a part of type text, image or video")
    return "".join(texts), media


def _cells(kind: Kind, row: Mapping[str, Any], key: str) -> list[Media]:
    value = row.get(key)
    cells = [] if value is None else value if isinstance(value, list) else [value]
    return [as_media(kind, cell, f"{key}[{number}]") for number, cell in enumerate(cells)]
