"""Data sets `jsonl` and `parquet`: rows of files as tasks.

A row needs messages or a prompt; the options' `fields` name these and the other columns. Messages are in the OpenAI
form, tool calls included, so a file may hold demonstrations. Images stand in a list of their own, and the messages say
where by `<image>` or a part of type `image`. A field that is null counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.builtin.options import FieldMapping, FileDatasetOptions
from toolrl.builtin.rows import JoinedRows, JsonLines, ParquetRows, Row, find_files, open_rows
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import IMAGE_MARK, Media, Message, Task, ToolCall

ROLES = ("system", "user", "assistant", "tool")
SELECTION = "tool_selection"
"""The column that selects tools where `tools` doesn't."""
STAGES = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


class FileDataset:
    """Tasks of files. A row is read when it is asked for; a bad one is a DataError with its file and line."""

    def __init__(self, rows: JoinedRows, fields: FieldMapping, environment: str | None = None) -> None:
        self._rows = rows
        self._fields = fields
        self._environment = environment
        self._named = fields.model_fields_set
        self._question = [field for field in ("messages", "prompt") if field in self._named] or ["messages", "prompt"]
        paths = (getattr(fields, name) for name in type(fields).model_fields)
        self._used = {path.partition(".")[0] for path in paths if path is not None}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Task:
        return self._rows.read(index, lambda row: self._task(row, self._rows.name(index), self._rows.folder(index)))

    def where(self, index: int) -> str:
        """The row's file and place in it."""
        return self._rows.where(index)

    def _task(self, row: Row, name: str, folder: Path) -> Task:
        """`folder`: where relative paths of images begin. Raises DataError, without the row's place."""
        identity = self._get(row, "id")
        chosen = self._get(row, "environment", optional=self._environment is not None)
        return Task(
            id=name if identity is None else str(identity),
            messages=self._with_images(self._messages(row), row, folder),
            answer=self._get(row, "answer"),
            environment=self._environment if chosen is None else str(chosen),
            tools=self._tools(row),
            tools_kwargs=self._tools_kwargs(row),
            extra=self._extra(row),
        )

    def _get(self, row: Row, field: str, *, optional: bool = False) -> Any:
        """The value at the field's path; None where it is absent and needn't be there: it has its default name, or is
        optional."""
        path: str = getattr(self._fields, field)
        value: Any = row
        for part in path.split("."):
            value = _mapping(value).get(part)
            if value is None:
                break
        if value is None and field in self._named and not optional:
            raise _bad(f"no value at {path!r} (fields.{field})", f"The row has: {', '.join(row)}.")
        return value

    def _messages(self, row: Row) -> tuple[Message, ...]:
        for field in self._question:
            value = self._get(row, field)
            if value is not None:
                path = getattr(self._fields, field)
                return (Message("user", value),) if isinstance(value, str) else read_messages(value, path)
        raise _bad(
            f"neither {self._fields.messages!r} nor {self._fields.prompt!r} is there; the row has: {', '.join(row)}",
            "Name the question's column, for example `fields: {prompt: question}`.",
        )

    def _with_images(self, messages: tuple[Message, ...], row: Row, folder: Path) -> tuple[Message, ...]:
        value = self._get(row, "images")
        if value is None:
            return messages
        path = self._fields.images
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            if "images" not in self._named:
                return messages  # the column holds something else
            raise _bad(f"{path!r} is {_short(value)}, expected a list of images")
        if not value:
            return messages
        images = [read_image(item, f"{path}[{index}]", folder) for index, item in enumerate(value)]
        return place_images(messages, images, path)

    def _tools(self, row: Row) -> tuple[str, ...] | None:
        path, value = self._fields.tools, self._get(row, "tools")
        if "tools" not in self._named and not _is_names(value):
            path, value = SELECTION, row.get(SELECTION)  # the column `tools` may hold something else, such as schemas
            if value is None:
                return None
        if not _is_names(value):
            raise _bad(f"{path!r} is {_short(value)}, expected a list of tool names")
        return tuple(value)

    def _tools_kwargs(self, row: Row) -> dict[str, dict[str, Any]]:
        return read_tools_kwargs(self._get(row, "tools_kwargs"), self._fields.tools_kwargs)

    def _extra(self, row: Row) -> dict[str, Any]:
        if self._fields.extra is not None:
            return read_object(self._get(row, "extra"), self._fields.extra)
        return {name: value for name, value in row.items() if name not in self._used}


def jsonl(options: FileDatasetOptions, context: BuildContext) -> FileDataset:
    """JSON Lines files, whatever their ending but `.json`, which holds one list, and `.parquet`."""
    files = find_files(options.path, context.where)
    return FileDataset(
        JoinedRows([open_rows(file, JsonLines) for file in files], options.limit), options.fields, options.environment
    )


def parquet(options: FileDatasetOptions, context: BuildContext) -> FileDataset:
    """Parquet files. Needs pyarrow."""
    rows = [ParquetRows(file) for file in find_files(options.path, context.where)]
    return FileDataset(JoinedRows(rows, options.limit), options.fields, options.environment)


def _is_names(value: Any) -> bool:
    return not isinstance(value, str) and isinstance(value, Sequence) and all(isinstance(item, str) for item in value)


def place_images(messages: Sequence[Message], images: Sequence[Media], path: str = "images") -> tuple[Message, ...]:
    """The messages with their images: in order at each `<image>`, or all in the first user message where there is none.
    Raises DataError where the numbers of marks and images differ."""
    marks = [message.content.count(IMAGE_MARK) if message.role in ("user", "tool") else 0 for message in messages]
    if not any(marks):
        first = next((index for index, message in enumerate(messages) if message.role == "user"), None)
        if first is None:
            raise _bad(f"{path!r} holds {len(images)} images, and no message is the user's")
        marks[first] = len(images)
    if sum(marks) != len(images):
        raise _bad(
            f"{path!r} holds {len(images)} images, and the messages hold `{IMAGE_MARK}` {sum(marks)} times",
            "Write it once for each image, or not at all.",
        )
    left = iter(images)
    return tuple(
        replace(message, media=tuple(next(left) for _ in range(count))) if count else message
        for message, count in zip(messages, marks, strict=True)
    )


def read_image(value: Any, path: str, folder: Path) -> Media:
    """A path (a relative one begins at `folder`), a file's bytes, or an object with one of them: `Media`. The file is
    opened when a run needs it. Raises DataError, which names the place within the row, `path`."""
    data = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
    if isinstance(data, bytes) and data:
        return Media("image", data)
    if isinstance(data, str) and data:
        return Media("image", str(folder / data))
    raise _bad(f"{path!r} is {_short(value)}, expected a path, or an object with 'bytes' or 'path'")


def read_tools_kwargs(value: Any, path: str) -> dict[str, dict[str, Any]]:
    """Tool to stage to arguments. Raises DataError, which names the place within the row."""
    given: dict[str, dict[str, Any]] = {}
    for tool, stages in read_object(value, path).items():
        given[tool] = {}
        for stage, kwargs in read_object(stages, f"{path}.{tool}").items():
            if stage not in STAGES:
                raise _bad(f"'{path}.{tool}.{stage}' is no stage's arguments, expected one of {', '.join(STAGES)}")
            given[tool][stage] = read_object(kwargs, f"{path}.{tool}.{stage}")
    return given


def read_messages(value: Any, path: str = "messages") -> tuple[Message, ...]:
    """Messages in the OpenAI form. Raises DataError, which names the place within the row."""
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or not value:
        raise _bad(f"{path!r} is {_short(value)}, expected a text or a list of messages")
    return tuple(_message(item, f"{path}[{index}]") for index, item in enumerate(value))


def _message(item: Any, path: str) -> Message:
    if not isinstance(item, Mapping):
        raise _bad(f"{path!r} is {_short(item)}, expected an object with 'role' and 'content'")
    role = item.get("role")
    if role not in ROLES:
        raise _bad(f"'{path}.role' is {_short(role)}, expected one of {', '.join(ROLES)}")
    calls = item.get("tool_calls")
    if calls is not None and (isinstance(calls, str | Mapping) or not isinstance(calls, Sequence)):
        raise _bad(f"'{path}.tool_calls' is {_short(calls)}, expected a list")
    if calls and role != "assistant":
        raise _bad(f"'{path}.tool_calls': only an assistant message has calls, this one is from {role!r}")
    return Message(
        role=role,
        content=_content(item.get("content"), f"{path}.content"),
        tool_calls=tuple(_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls or ())),
        tool_call_id=_text(item, "tool_call_id", path),
        name=_text(item, "name", path),
        reasoning=_text(item, "reasoning_content", path) or _text(item, "reasoning", path),
    )


def _content(value: Any, path: str) -> str:
    """Text, nothing, or a list of parts, in which an image is `<image>`."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence):
        return "".join(_parts(value, path))
    raise _bad(f"{path!r} is {_short(value)}, expected a text")


def _parts(parts: Sequence[Any], path: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image":
            yield IMAGE_MARK
        elif kind == "text" and isinstance(part.get("text"), str):
            yield part["text"]
        else:
            raise _bad(f"'{path}[{index}]' is {_short(part)}, expected a part of type 'text' or 'image'")


def _call(item: Any, path: str) -> ToolCall:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise _bad(f"{path!r} is {_short(item)}, expected {{'function': {{'name': …, 'arguments': …}}}}")
    arguments = read_object(function.get("arguments"), f"{path}.function.arguments")
    return ToolCall(name, arguments, id=_text(item, "id", path) or "")


def _text(item: Mapping[str, Any], key: str, path: str) -> str | None:
    value = item.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _bad(f"'{path}.{key}' is {_short(value)}, expected a text")


def _mapping(value: Any) -> Mapping[str, Any]:
    """An object, also one that is stored as JSON text; empty for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def read_object(value: Any, path: str) -> dict[str, Any]:
    """An object, or one as JSON text; empty for null. Raises DataError, which names the place within the row."""
    if value is None:
        return {}
    read = value
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad(f"{path!r} is {_short(value)}, expected an object or its JSON text: {error}") from None
    if not isinstance(read, Mapping):
        raise _bad(f"{path!r} is {_short(value)}, expected an object")
    return dict(read)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _bad(message: str, hint: str | None = None) -> DataError:
    return DataError(message, hint=hint)
