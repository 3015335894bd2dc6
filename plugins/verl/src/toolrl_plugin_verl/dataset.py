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

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.builtin.datasets import read_messages, read_object, read_tools_kwargs
from toolrl.builtin.rows import JoinedRows, open_rows
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Media, Message, Task
from toolrl_plugin_verl.files import data_files
from toolrl_plugin_verl.media import RowMedia
from toolrl_plugin_verl.options import VerlDatasetOptions
from toolrl_plugin_verl.results import plain

_log = logging.getLogger(__name__)


class VerlDataset:
    """Tasks of files. A bad row is a DataError with its file and place."""

    def __init__(self, options: VerlDatasetOptions, context: BuildContext) -> None:
        self._options = options
        files = data_files(options.path, context.where)
        self._rows = JoinedRows([open_rows(file) for file in files], options.limit)
        self._warned = False

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Task:
        rows = self._rows
        return rows.read(index, lambda row: self._task(plain(row), rows.name(index), rows.folder(index)))

    def _task(self, row: dict[str, Any], name: str, folder: Path) -> Task:
        options = self._options
        extra_info = read_object(row.get("extra_info"), "extra_info")
        reward_model = read_object(row.get("reward_model"), "reward_model")
        source = row.get(options.reward_fn_key)
        if extra_info.get("need_tools_kwargs") and not extra_info.get("tools_kwargs"):
            self._warn(name)
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
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, list) or not prompt:
            raise DataError(f"{options.prompt_key!r} is {type(prompt).__name__}, expected a list of messages")
        columns = {"image": options.image_key, "video": options.video_key}
        of_row = RowMedia({kind: (key, row.get(key)) for kind, key in columns.items()})  # type: ignore[misc]
        parts = [of_row.of(item, f"{options.prompt_key}[{n}]") for n, item in enumerate(prompt)]
        messages = read_messages([message for message, _ in parts], options.prompt_key)
        media = [found for _, found in parts]
        if left := of_row.rest():
            first = next((n for n, message in enumerate(messages) if message.role == "user"), None)
            if first is None:
                raise DataError(f"the row has {len(left)} images or videos, and no message is the user's")
            media[first] = left
        return tuple(
            replace(message, media=tuple(_placed(item, folder) for item in found)) if found else message
            for message, found in zip(messages, media, strict=True)
        )

    def _environment(self, row: Mapping[str, Any], source: Any) -> str | None:
        routes = self._options.environments
        for value in (row.get("agent_name"), source):
            if isinstance(value, str) and value in routes:
                return routes[value]
        return self._options.environment

    def _warn(self, name: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("row %s sets need_tools_kwargs and has no tools_kwargs; later ones aren't reported", name)


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
