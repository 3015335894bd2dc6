"""Data sets `jsonl` and `parquet`: rows of files as tasks.

A row needs messages or a prompt; the options' `fields` name these and the other columns. Messages are read by
`toolrl.chat.conversation`, tool calls included, so a file may hold demonstrations. Images stand in a list of their own,
and the messages say where by `<image>` or a part of type `image`. A field that is null counts as absent. A column that
looks like a field and isn't one is remarked on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from toolrl import bounded_json
from toolrl.builtin.given_rows import HINT, given_rows
from toolrl.builtin.options import FieldMapping as FieldMapping
from toolrl.builtin.options import FileDatasetOptions
from toolrl.builtin.rows import FileRows, JoinedRows, JsonLines, ParquetRows, Row, RowTasks, find_files, open_rows
from toolrl.builtin.unread_columns import remark_on_columns
from toolrl.chat.conversation import read_messages
from toolrl.chat.message_reading import read_object, short
from toolrl.chat.row_remarks import remark
from toolrl.errors import ConfigError, DataError
from toolrl.protocols import BuildContext, TaskSource
from toolrl.types import IMAGE_MARK, Media, Message, Task, ToolSpec

SELECTION = "tool_selection"
"""The column that selects tools where `tools` doesn't."""
_LOOKED_AT = 1000
"""Rows that tell what a column of lists holds, if a row has an empty one."""
STAGES = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


class FileDataset(RowTasks):
    """Tasks of files. A row is read when it is asked for; a bad one is a DataError with its file and line."""

    def __init__(self, rows: JoinedRows, fields: FieldMapping, environment: str | None = None) -> None:
        self._rows = rows
        self._fields = fields
        self._environment = environment
        self._named = fields.model_fields_set
        self._question = [field for field in ("messages", "prompt") if field in self._named] or ["messages", "prompt"]
        paths = ((name, getattr(fields, name)) for name in type(fields).model_fields)
        unread = {"messages", "prompt"} - set(self._question)
        self._used = {path.partition(".")[0] for name, path in paths if path is not None and name not in unread}

    def __getitem__(self, index: int) -> Task:
        return self._rows.read(index, lambda row: self._task(row, self._rows.name(index), self._rows.folder(index)))

    def _task(self, row: Row, name: str, folder: Path) -> Task:
        """`folder`: where relative paths of images begin. Raises DataError, without the row's place."""
        identity = self._get(row, "id")
        chosen = self._get(row, "environment", optional=self._environment is not None)
        messages = self._messages(row, folder)
        return Task(
            id=name if identity is None else str(identity),
            messages=messages,
            answer=self._get(row, "answer"),
            environment=self._environment if chosen is None else str(chosen),
            tools=self._tools(row, messages),
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
            if value is None or (isinstance(value, float) and value != value):  # NaN is pandas' empty cell
                value = None
                break
        if value is None and field in self._named and not optional:
            raise _bad(f"no value at {path!r} (fields.{field})", f"The row has: {', '.join(row)}.")
        return value

    def _messages(self, row: Row, folder: Path) -> tuple[Message, ...]:
        fields = self._fields
        there = [field for field in self._question if self._get(row, field) is not None]
        if not there:
            raise _bad(
                f"neither {fields.messages!r} nor {fields.prompt!r} is there; the row has: {', '.join(row)}",
                "Name the question's column, for example `fields: {prompt: question}`.",
            )
        path, *others = (getattr(fields, field) for field in there)
        for other in others:
            text = f"{path!r} is read and {other!r} isn't; `fields: {{{other}: {other}}}` reads that one"
            remark("question.both", text)
        value = self._get(row, there[0])
        messages = read_messages(value, path, lambda found: self._with_images(found, row, folder))
        messages = self._with_system(messages if fields.context is None else self._with_context(messages, row), row)
        remark_on_columns(row, self._used, messages)
        if not messages[-1].content.strip() and not messages[-1].media and messages[-1].role == "user":
            remark("question.empty", f"{path!r} asks nothing: its last message is empty")
        return messages

    def _with_context(self, messages: tuple[Message, ...], row: Row) -> tuple[Message, ...]:
        """The messages, with the row's context after the text of the last one."""
        path, text = self._fields.context, self._get(row, "context", optional=True)
        if text in (None, ""):
            return messages
        if not isinstance(text, str) or messages[-1].role != "user":
            raise _bad(f"{path!r} is {short(text)}, expected a text that follows a user's message (fields.context)")
        return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{text}"))

    def _with_system(self, messages: tuple[Message, ...], row: Row) -> tuple[Message, ...]:
        """The messages after the row's system message, unless they have one."""
        path = self._fields.system
        text = None if path is None else self._get(row, "system", optional=True)
        if text in (None, ""):
            return messages
        if not isinstance(text, str):
            raise _bad(f"{path!r} is {short(text)}, expected a text (fields.system)")
        if any(message.role == "system" for message in messages):
            remark("system.both", f"{path!r} has no effect: the messages have a system message")
            return messages
        return (Message("system", text), *messages)

    def _with_images(self, messages: Sequence[Message], row: Row, folder: Path) -> Sequence[Message]:
        value = self._get(row, "images")
        if value is None:
            return messages
        path = self._fields.images
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            if "images" not in self._named:
                remark("images.other", f"{path!r} is {short(value)}, no list of images: the model doesn't see it")
                return messages
            return place_images(messages, [read_image(value, path, folder)], path)
        if not value:
            return messages
        images = [read_image(item, f"{path}[{index}]", folder) for index, item in enumerate(value)]
        return place_images(messages, images, path)

    def _tools(self, row: Row, messages: Sequence[Message]) -> tuple[str, ...] | None:
        path, value = self._fields.tools, _decoded_list(self._get(row, "tools"))
        if "tools" not in self._named:
            if value == [] and self._holds_schemas is None:
                remark("tools.empty", f"{path!r} is []: the task has no tools")
            if _is_schemas(value) or (value == [] and self._holds_schemas):
                remark("tools.schemas", f"{path!r} holds schemas, which aren't shown: the environment has the tools")
                _compare_calls(messages, value, path)
                value = None
            elif value is not None and not _is_names(value):
                remark("tools.other", f"{path!r} is {short(value)}, no list of tool names: it selects no tools")
                value = None
            if value is None:
                path, value = SELECTION, _decoded_list(row.get(SELECTION))
            if value is None:
                return None
        if not _is_names(value):
            raise _bad(f"{path!r} is {short(value)}, expected a list of tool names")
        return tuple(value)

    @cached_property
    def _holds_schemas(self) -> bool | None:
        """Whether the column `tools` holds schemas in the first row in which it isn't empty; None if there is none."""
        for index in range(min(_LOOKED_AT, len(self._rows))):
            with suppress(DataError):  # that row tells of it when it is read
                if value := _decoded_list(self._get(self._rows[index], "tools")):
                    return _is_schemas(value)
        return None

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


def given_tasks(
    value: Any,
    where: str,
    fields: FieldMapping | None = None,
    limit: int | None = None,
    environment: str | None = None,
) -> TaskSource:
    """The tasks of rows that are Python objects, or of a list of `Task`, which is taken as it is. `where` is their
    place in the config; the others are as in FileDatasetOptions. Raises ConfigError for what has no rows."""
    rows = given_rows(value, where)
    if isinstance(rows, FileRows):
        return FileDataset(JoinedRows([rows], limit), fields or FieldMapping(), environment)
    if len(rows) and not isinstance(rows[0], Task):
        raise ConfigError(f"{where}: row 0 is a {type(rows[0]).__name__}, expected a dict or a Task", hint=HINT)
    return rows


def _is_names(value: Any) -> bool:
    return not isinstance(value, str) and isinstance(value, Sequence) and all(isinstance(item, str) for item in value)


def _is_schemas(value: Any) -> bool:
    """Whether it is a list of tools' schemas, in OpenAI's form or a plain one with a name."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return False
    return all(isinstance(item, Mapping) for item in value)


def _compare_calls(messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]], path: str) -> None:
    """Remark on a call of a tool that the row's own schemas don't have."""
    with suppress(ValueError):  # schemas in another form
        names = [ToolSpec.from_function(schema).name for schema in schemas]
        for call in (call for message in messages for call in message.tool_calls):
            if call.name not in names:
                remark("tools.absent", f"the messages call {call.name!r}, which {path!r} doesn't hold")


def _decoded_list(value: Any) -> Any:
    """A list that is stored as JSON text, as CSV files do; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            read = bounded_json.loads(value)
        except ValueError:
            return value
        return read if isinstance(read, list) else value
    return value


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
    """A path (a relative one begins at `folder`), a file's bytes, an object with one of them, or a PIL image: `Media`.
    The file is opened when a run needs it. Raises DataError, which names the place within the row, `path`."""
    if type(value).__module__.startswith("PIL."):
        return Media("image", value)
    data = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
    if isinstance(data, bytes) and data:
        return Media("image", data)
    if isinstance(data, str) and data:
        return Media("image", str(folder / data))
    raise _bad(f"{path!r} is {short(value)}, expected a path, or an object with 'bytes' or 'path'")


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


def _mapping(value: Any) -> Mapping[str, Any]:
    """An object, also one that is stored as JSON text; empty for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = bounded_json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _bad(message: str, hint: str | None = None) -> DataError:
    return DataError(message, hint=hint)
