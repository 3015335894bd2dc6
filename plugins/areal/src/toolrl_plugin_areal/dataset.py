"""The data set `areal_tir`: rows with `messages` and `answer`.

    {"messages": [{"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}

ToRL's parquet files, which AReaL's config names, have the question in `prompt` and the answer in
`reward_model.ground_truth`; a row without `messages` or `answer` is looked at there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolrl.builtin.rows import JoinedRows, Row, RowTasks, find_files, open_rows
from toolrl.chat.conversation import read_messages
from toolrl.chat.message_reading import read_object
from toolrl.chat.row_remarks import remark
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task
from toolrl_plugin_areal.options import ArealTirDataOptions

_READ = frozenset(("messages", "prompt", "answer"))


class ArealTirData(RowTasks):
    """Tasks of AReaL's files. A row is read when it is asked for."""

    def __init__(self, options: ArealTirDataOptions, context: BuildContext) -> None:
        self._options = options
        files = find_files(options.path, context.where)
        self._rows = JoinedRows([open_rows(file) for file in files], options.limit)

    def __getitem__(self, index: int) -> Task:
        return self._rows.read(index, lambda row: self._task(row, self._rows.name(index)))

    def _task(self, row: Row, name: str) -> Task:
        return Task(
            id=name,
            messages=self._messages(row),
            answer=_answer(row),
            environment=self._options.environment,
            extra={name: value for name, value in row.items() if name not in _READ},
        )

    def _messages(self, row: Mapping[str, Any]) -> tuple[Message, ...]:
        name = "messages" if row.get("messages") is not None else "prompt"
        value = row.get(name)
        if value is None:
            raise _bad(f"it has no `messages`; it has: {', '.join(row)}")
        if name == "messages" and row.get("prompt") is not None:
            remark("question.both", "'messages' is read and 'prompt' isn't")
        messages = read_messages(value, name)
        if any(message.role == "system" for message in messages):
            remark("system.own", "the row's system message isn't read: AReaL's own prompt replaces it")
        messages = tuple(message for message in messages if message.role != "system")
        if not messages:
            raise _bad(f"`{name}` asks nothing: it holds a system message alone")
        return messages


def _answer(row: Mapping[str, Any]) -> Any:
    """A text, or a list of texts of which each is right."""
    answer = row.get("answer")
    if answer is None:
        answer = read_object(row.get("reward_model"), "reward_model").get("ground_truth")
    answers = answer if isinstance(answer, list) else [answer]
    if not answers or not all(map(_is_answer, answers)):
        raise _bad(f"its `answer` is {answer!r:.80}, expected a text or a number")
    return [str(item) for item in answers] if isinstance(answer, list) else str(answer)


def _is_answer(value: Any) -> bool:
    """Whether it is a text that isn't blank, or a number that isn't NaN."""
    return isinstance(value, str | int | float) and bool(str(value).strip()) and value == value


def _bad(what: str) -> DataError:
    return DataError(
        f"not a row of AReaL's TIR example: {what}",
        hint="For rows of another form use the data set `jsonl` or `parquet` with `fields`.",
    )
