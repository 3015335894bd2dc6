"""Data set `geo3k`: geometry problems with pictures.

Reads the public data set (hiyouga/geometry3k: `problem`, `answer`, `images`) and the files that `toolrl geo3k data`
makes of it. The task's answer goes to the reward, and to the tool `calc_geo3k_reward` by `tools_kwargs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolrl.builtin.datasets import place_images
from toolrl.builtin.rows import Row, RowTasks
from toolrl.chat.conversation import read_messages
from toolrl.chat.message_reading import read_object
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task
from toolrl_plugin_geo3k.files import images_of, open_split
from toolrl_plugin_geo3k.options import Geo3kDataOptions
from toolrl_plugin_geo3k.tool import NAME


class Geo3k(RowTasks):
    """Tasks of Geometry3K files."""

    def __init__(self, options: Geo3kDataOptions, context: BuildContext) -> None:
        self._options = options
        self._rows = open_split(options.path, options.split, options.limit, context.where)

    def __getitem__(self, index: int) -> Task:
        return self._rows.read(index, lambda row: self._task(row, self._rows.name(index), self._rows.folder(index)))

    def _task(self, row: Row, name: str, folder: Path) -> Task:
        images = images_of(row, folder)
        messages, answer = read_row(row, self._options.instruction, self._options.system_prompt)
        return Task(
            id=name,
            messages=place_images(messages, images) if images else messages,
            answer=answer,
            environment=self._options.environment,
            tools_kwargs={NAME: {"create_kwargs": {"ground_truth": answer}}},
            extra={name: value for name, value in row.items() if name not in ("images", "prompt", "problem", "answer")},
        )


def read_row(row: Row, instruction: str, system_prompt: str | None) -> tuple[tuple[Message, ...], str]:
    """Messages and ground truth of a row in either layout. Raises DataError, without the row's place."""
    if "prompt" in row:
        answer: Any = read_object(row.get("reward_model"), "reward_model").get("ground_truth")
        messages = read_messages(row["prompt"], "prompt")
    else:
        answer, problem = row.get("answer"), row.get("problem")
        if not isinstance(problem, str):
            raise DataError(
                f"a row needs `problem` and `answer`, or `prompt` and `reward_model`; it has {', '.join(row)}",
                hint="For rows of another form use the data set `parquet` with `fields`.",
            )
        messages = build_messages(problem, instruction, system_prompt)
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise DataError(f"the row's ground truth is {answer!r:.60}, expected a text")
    return messages, str(answer)


def build_messages(problem: str, instruction: str, system_prompt: str | None) -> tuple[Message, ...]:
    """The prompt of a problem."""
    text = f"{problem} {instruction}" if instruction else problem
    system = (Message("system", system_prompt),) if system_prompt is not None else ()
    return (*system, Message("user", text))
