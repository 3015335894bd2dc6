"""The data set `verl`: rows of verl's data files as tasks.

| column | becomes |
|---|---|
| `prompt` | the messages; `<image>` and `<video>` stay in their texts, the media beside them in that order |
| `images`, `videos` | those media |
| `reward_model.ground_truth` | `Task.answer` |
| `extra_info.tools_kwargs` | `Task.tools_kwargs` |
| `extra_info.tool_selection` | `Task.tools` |
| `agent_name`, else `data_source` | the environment, by the option `environments` |
| `data_source`, `ability`, `reward_model`, `extra_info`, `agent_name` and every other column | `Task.extra` |

Values are plain lists and dicts, also those of parquet files. A row is read when it is asked for.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from toolrl.builtin.datasets import read_tools_kwargs
from toolrl.builtin.given_rows import plain
from toolrl.builtin.rows import JoinedRows, RowTasks, find_files, open_rows
from toolrl.chat.conversation import from_text, read_messages
from toolrl.chat.message_reading import read_object
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Media, Message, Task
from toolrl_plugin_verl.options import VerlDatasetOptions

_log = logging.getLogger(__name__)
Kind = Literal["image", "video"]
ROUTED_ROWS = 50_000
"""Rows that are looked at for a value of `environments`, at most; nothing is said of longer data sets."""
LONGEST_PATH = 4096
_MARK = re.compile("<(image|video)>")


class VerlDataset(RowTasks):
    """Tasks of files. A bad row is a DataError with its file and place."""

    def __init__(self, options: VerlDatasetOptions, context: BuildContext) -> None:
        self._options = options
        files = find_files(options.path, context.where)
        self._rows = JoinedRows([open_rows(file) for file in files], options.limit)
        if idle := self._idle_routes():
            _log.warning(
                "%s.options.environments: no row has the agent_name or %s %s",
                context.where or "data", options.reward_fn_key, ", ".join(map(repr, sorted(idle))),
            )  # fmt: skip

    def __getitem__(self, index: int) -> Task:
        rows = self._rows
        return rows.read(index, lambda row: self._task(plain(row), rows.name(index), rows.folder(index)))

    def _task(self, row: dict[str, Any], name: str, folder: Path) -> Task:
        options = self._options
        extra_info = read_object(row.get("extra_info"), "extra_info")
        reward_model = read_object(row.get("reward_model"), "reward_model")
        source = row.get(options.reward_fn_key)
        media = (options.image_key, options.video_key)
        extra = {key: value for key, value in row.items() if key not in (options.prompt_key, *media)}
        extra |= {"data_source": source, "extra_info": extra_info, "reward_model": reward_model}
        extra |= {key: extra_info[key] for key in ("index", "split") if key in extra_info and key not in row}
        return Task(
            id=name,
            messages=self._messages(row, folder),
            answer=reward_model.get("ground_truth"),
            environment=self._environment(row, source),
            tools=_selection(extra_info.get("tool_selection")),
            tools_kwargs=read_tools_kwargs(extra_info.get("tools_kwargs"), "extra_info.tools_kwargs"),
            extra=extra,
        )

    def _messages(self, row: Mapping[str, Any], folder: Path) -> tuple[Message, ...]:
        options = self._options
        prompt = row.get(options.prompt_key)
        if prompt is None:
            raise DataError(
                f"no column {options.prompt_key!r}; the row has: {', '.join(row)}",
                hint="Say where the messages are: `prompt_key: …`.",
            )
        prompt = from_text(prompt, options.prompt_key)
        if not isinstance(prompt, list) or not prompt:
            raise DataError(f"{options.prompt_key!r} is {type(prompt).__name__}, expected a list of messages")
        columns = {"image": options.image_key, "video": options.video_key}
        of_row = RowMedia({kind: (key, row.get(key)) for kind, key in columns.items()})  # type: ignore[misc]
        parts = [of_row.of(item, f"{options.prompt_key}[{n}]") for n, item in enumerate(prompt)]

        def place(messages: Sequence[Message]) -> list[Message]:
            media = [found for _, found in parts]
            if left := of_row.rest():
                first = next((n for n, message in enumerate(messages) if message.role == "user"), None)
                if first is None:
                    raise DataError(f"the row has {len(left)} images or videos, and no message is the user's")
                media[first] = left
            return [
                replace(message, media=tuple(_placed(item, folder) for item in found)) if found else message
                for message, found in zip(messages, media, strict=True)
            ]

        return read_messages([message for message, _ in parts], options.prompt_key, place)

    def _idle_routes(self) -> set[str]:
        """The values of `environments` that no row has, as far as rows are looked at."""
        left = set(self._options.environments)
        for index in range(min(len(self._rows), ROUTED_ROWS) if left else 0):
            with contextlib.suppress(DataError):  # It is told when the row is drawn.
                row = self._rows[index]
                left.difference_update(self._routing(row, row.get(self._options.reward_fn_key)))
            if not left:
                return left
        return left if len(self._rows) <= ROUTED_ROWS else set()

    @staticmethod
    def _routing(row: Mapping[str, Any], source: Any) -> list[str]:
        """What picks a row's environment, the first one first."""
        return [value for value in (row.get("agent_name"), source) if isinstance(value, str)]

    def _environment(self, row: Mapping[str, Any], source: Any) -> str | None:
        routes = self._options.environments
        for value in self._routing(row, source):
            if value in routes:
                return routes[value]
        return self._options.environment


def _placed(media: Media, folder: Path) -> Media:
    """A relative path begins at the data file's folder where it leads to a file, else at the current one."""
    beside = folder / media.data if isinstance(media.data, str) else None
    if beside is not None and os.path.isfile(beside):  # noqa: PTH113 - False for what can't be a path at all
        return replace(media, data=str(beside))
    return media


def _selection(value: Any) -> tuple[str, ...] | None:
    if value is None or value == []:  # An empty one selects nothing and means all, as in verl.
        return None
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise DataError(f"'extra_info.tool_selection' is {value!r:.80}, expected a list of tool names")


# Images and videos of a row, where its messages have `<image>` and `<video>`, or parts of these types. Bytes and paths
# stay what they are: the chat format opens them when an episode needs them.


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
            raise DataError(f"the row has more {left[0].kind}s than its messages have <{left[0].kind}>")
        return left

    def _take(self, kind: Kind) -> Media:
        if not self._left[kind]:
            raise DataError(f"the messages have more <{kind}> than the row has {kind}s ({self._count[kind]})")
        return self._left[kind].pop(0)


def as_media(kind: Kind, cell: Any, where: str) -> Media:
    """One cell. `where` names it for messages. Raises DataError."""
    if isinstance(cell, Mapping):
        keys = ("bytes", kind, f"{kind}_url", "path", "url")
        found = next((key for key in keys if cell.get(key) is not None), None)
        if found is None:
            raise DataError(f"{where} has none of 'bytes', 'path' and {kind!r}")
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
    hint = f"Give bytes, {{'bytes': …}}, {{'path': …}}, a data: URL or a path as {kind}."
    raise DataError(f"{where} is {type(cell).__name__} {str(cell)[:60]!r}", hint=hint)


def _cells(kind: Kind, name: str, value: Any) -> list[Media]:
    cells = [] if value is None else value if isinstance(value, list) else [value]
    return [as_media(kind, cell, f"{name}[{number}]") for number, cell in enumerate(cells)]
