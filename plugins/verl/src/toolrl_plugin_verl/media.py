"""Images and videos of a row as `Media`, where its messages have `<image>` and `<video>`, or parts of these types.

A cell of an `images` column is what the `datasets` library writes, `{"bytes": …, "path": …}`, or bytes, base64 text
with `data:image/…;base64,` before it, `{"image": …}` of verl's messages, or a path. Bytes and paths stay what they are:
the chat format opens them when an episode needs them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolrl.errors import DataError
from toolrl.types import Media

Kind = Literal["image", "video"]
LONGEST_PATH = 4096
_MARK = re.compile("<(image|video)>")
_FORMS = {
    "image": "An image is {'bytes': …}, {'path': …}, bytes, a data: URL or a path.",
    "video": "A video is a path, {'video': path}, or a list of frames.",
}


class RowMedia:
    """A row's images and videos, handed out to its messages in order."""

    def __init__(self, columns: Mapping[Kind, tuple[str, Any]]) -> None:
        """Kind to the name and the value of its column. Raises DataError for a cell that is no image or video."""
        self._left = {kind: _cells(kind, *column) for kind, column in columns.items()}
        self._count = {kind: len(left) for kind, left in self._left.items()}

    def of(self, message: Any, where: str) -> tuple[Any, list[Media]]:
        """A message whose content is one text with marks, and the media that stand there."""
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            # Without a column `<image>` is plain text.
            return message, [self._take(kind) for kind in _MARK.findall(content) if self._count[kind]]
        if not isinstance(content, list):
            return message, []
        texts, media = [], []
        for number, part in enumerate(content):
            kind: Any = str(part.get("type")).removesuffix("_url") if isinstance(part, Mapping) else None
            if kind == "image" or kind == "video":
                texts.append(f"<{kind}>")
                own = {key: value for key, value in part.items() if key != "type" and value is not None}
                media.append(as_media(kind, own, f"{where}.content[{number}]") if own else self._take(kind))
            elif kind == "text" and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                where = f"{where}.content[{number}]"
                raise DataError(f"{where!r} is {part!r:.80}, expected a part of type text, image or video")
        return {**message, "content": "".join(texts)}, media

    def rest(self) -> list[Media]:
        """All of them where the messages have no mark. Raises DataError where they have too few."""
        left = [media for kind in self._left.values() for media in kind]
        if left and len(left) < sum(self._count.values()):
            raise DataError(
                f"the row has more {left[0].kind}s than its messages have <{left[0].kind}>",
                hint="Put one <image> or <video> into the prompt for each, where it is to be seen.",
            )
        return left

    def _take(self, kind: Kind) -> Media:
        if not self._left[kind]:
            raise DataError(
                f"the messages have more <{kind}> than the row has {kind}s ({self._count[kind]})",
                hint=f"Each <{kind}> stands for one entry of the column.",
            )
        return self._left[kind].pop(0)


def as_media(kind: Kind, cell: Any, where: str) -> Media:
    """One cell. `where` names it for messages. Raises DataError."""
    if isinstance(cell, Mapping):
        keys = ("bytes", kind, f"{kind}_url", "path", "url")
        found = next((key for key in keys if cell.get(key) is not None), None)
        if found is None:
            had = ", ".join(map(str, cell)) or "nothing"
            raise DataError(f"{where} has none of 'bytes', 'path' and {kind!r}; it has {had}")
        return as_media(kind, cell[found], f"{where}.{found}")
    if isinstance(cell, bytes | bytearray | memoryview):
        return Media(kind, bytes(cell))
    if isinstance(cell, str) and cell.startswith("data:"):
        head, _, body = cell.partition(",")
        try:
            if not head.endswith(";base64"):
                raise ValueError(head)
            return Media(kind, base64.b64decode(body, validate=True))
        except ValueError:
            raise DataError(f"{where} is a data: URL that isn't base64: {cell[:40]!r}") from None
    if isinstance(cell, str) and cell.startswith(("http://", "https://")):
        raise DataError(f"{where} is the address {cell[:80]!r}", hint="Download it and put its path or bytes there.")
    if isinstance(cell, str) and 0 < len(cell) <= LONGEST_PATH:
        return Media(kind, cell.removeprefix("file://"))
    if kind == "video" and isinstance(cell, Sequence) and cell:
        return Media(kind, [as_media("image", frame, f"{where}[{n}]").data for n, frame in enumerate(cell)])
    if type(cell).__module__.partition(".")[0] == "PIL":
        return Media(kind, cell)
    raise DataError(f"{where} is {type(cell).__name__} {str(cell)[:60]!r}", hint=_FORMS[kind])


def _cells(kind: Kind, name: str, value: Any) -> list[Media]:
    cells = [] if value is None else value if isinstance(value, list) else [value]
    return [as_media(kind, cell, f"{name}[{number}]") for number, cell in enumerate(cells)]
