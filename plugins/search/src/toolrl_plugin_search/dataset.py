"""Data set `search_r1`: questions with one or several answers.

Reads Search-R1's parquet files (`question`, `golden_answers`, `prompt`, `reward_model.ground_truth.target`,
`data_source`) and plainer ones: `question` with `answer`, `answers` or `golden_answers`, also with a capital letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolrl.builtin.rows import JoinedRows, Row, RowTasks, find_files, open_rows
from toolrl.chat.conversation import read_messages
from toolrl.chat.message_reading import read_object, short
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task
from toolrl_plugin_search.options import SearchR1DataOptions

ANSWERS = ("golden_answers", "answers", "answer", "Answers", "Answer")
QUESTIONS = ("question", "Question", "query")


class SearchR1Data(RowTasks):
    """Tasks of question files."""

    def __init__(self, options: SearchR1DataOptions, context: BuildContext) -> None:
        """Raises DataError."""
        self._options = options
        files = [open_rows(file) for file in find_files(options.path, context.where)]
        self._rows = JoinedRows(files, options.limit)

    def __getitem__(self, index: int) -> Task:
        return self._rows.read(index, lambda row: self._task(row, self._rows.name(index)))

    def _task(self, row: Row, name: str) -> Task:
        options = self._options
        if options.prompt == "row":
            messages = read_messages(row["prompt"], "prompt") if "prompt" in row else ()
            if not messages:
                raise DataError("a row has no `prompt`", hint="Leave out `prompt: row`.")
        else:
            question = _first(row, QUESTIONS)
            if not isinstance(question, str) or not question.strip():
                raise DataError(
                    f"a row needs a text `question`; it has {', '.join(row)}",
                    hint="For rows of another form use the data set `jsonl` or `parquet` with `fields`.",
                )
            text = f"{question.strip()}\n\n{options.instruction}" if options.instruction else question.strip()
            messages = (Message("user", text),)
        system = (Message("system", options.system_prompt),) if options.system_prompt is not None else ()
        used = {*QUESTIONS, *ANSWERS, "prompt", "reward_model"}
        return Task(
            id=name,
            messages=(*system, *messages),
            answer=_answers(row),
            environment=options.environment,
            extra={
                "question": _first(row, QUESTIONS),
                **{key: value for key, value in row.items() if key not in used},
            },
        )


def _first(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _answers(row: Row) -> list[str]:
    """The golden answers. Raises DataError where there is none."""
    truth = read_object(row.get("reward_model"), "reward_model").get("ground_truth")
    found = truth.get("target") if isinstance(truth, Mapping) else None
    if found is None:
        found = _first(row, ANSWERS)
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = _list_of_texts(found)
    if isinstance(found, str | int | float):
        found = [found]
    given = [item for item in found if item is not None] if isinstance(found, Sequence) else []
    for item in given:
        if not isinstance(item, str | int | float):
            raise DataError(f"an answer is {item!r:.60}, expected a text or a number")
    answers = [text for item in given if (text := str(item)).strip()]
    if not answers:
        raise DataError(f"a row needs `golden_answers` or an `answer`; it has {', '.join(row)}")
    return answers


def _list_of_texts(text: str) -> Any:
    """The texts of a list that is stored as JSON; any other text as it is. Raises DataError for a list as Python prints
    it."""
    with suppress(ValueError, RecursionError):
        read = json.loads(text)
        return read if isinstance(read, list) and all(isinstance(item, str) for item in read) else text
    if text.strip().startswith("['") and text.strip().endswith("']"):
        hint = "Write the column as a list, or as JSON: json.dumps(answers), not str(answers)."
        raise DataError(f"the answers are {short(text)}, a list that isn't JSON", hint=hint)
    return text
