"""What the first rows of a data file hold: the columns of question and answer, and what judges such answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from toolrl.builtin.rows import find_files, open_rows
from toolrl.cli.output import UsageError
from toolrl.errors import DataError

QUESTIONS = ("messages", "prompt", "question", "problem", "query", "instruction", "input", "conversations", "text")
ANSWERS = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "target", "label", "expected", "output",
           "response")  # fmt: skip
_ROWS = 50
_NUMBER = re.compile(r"(.*####)?\s*[-+$]?[\d,]*\.?\d+\s*%?", re.DOTALL)


@dataclass(frozen=True)
class Columns:
    """Columns of a data file."""

    rows: int
    question: str
    answer: str | None
    fields: dict[str, str]
    """`options.fields` of the data set; empty where the names are its defaults."""
    question_chars: int
    """Characters of the longest question among the first rows."""
    rewards: tuple[str, ...]
    """Names of rewards that fit the answers, the best first."""


def look(path: str, question: str | None = None, answer: str | None = None) -> Columns:
    """The columns of a JSON Lines, JSON or parquet file, or of the first file of a glob. `question` and `answer` name
    columns that the caller knows. Raises DataError, UsageError."""
    files = [open_rows(file) for file in find_files(path, "--data")]
    count = sum(map(len, files))
    if not count:
        raise DataError("there are no rows", where=path, hint='A row is a line such as {"prompt": …, "answer": …}.')
    rows = [files[0][index] for index in range(min(_ROWS, len(files[0])))]
    asked = _column(rows[0], QUESTIONS, question, path, "--question")
    known = _column(rows[0], ANSWERS, answer, path, "--answer")
    if asked is None:
        raise UsageError(
            f"no column looks like a question; the first row has: {', '.join(rows[0])}",
            where=path,
            hint="Name it by --question COLUMN.",
        )
    fields = {} if asked in ("messages", "prompt") else {"prompt": asked}
    if known not in (None, "answer"):
        fields["answer"] = str(known)
    longest = max(len(str(_value(row, asked))) for row in rows)
    answers = [_value(row, known) for row in rows] if known else []
    return Columns(count, asked, known, fields, longest, _rewards(answers))


def _column(row: Mapping[str, Any], usual: Sequence[str], given: str | None, path: str, option: str) -> str | None:
    """The given column, else the first of the usual ones that a row has."""
    if given is not None and _value(row, given) is None:
        raise UsageError(f"{option}: the first row has no {given!r}", where=path, hint=f"It has: {', '.join(row)}.")
    return given or next((name for name in usual if _value(row, name) is not None), None)


def _value(row: Any, path: str) -> Any:
    """What stands at a column, or at a dotted path into nested objects."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _rewards(answers: Sequence[Any]) -> tuple[str, ...]:
    texts = [str(answer) for answer in answers if answer is not None]
    if not texts:
        return ()
    if all(_NUMBER.fullmatch(text.strip()) for text in texts):
        return ("gsm8k", "exact")
    return ("math", "exact") if any("\\" in text for text in islice(texts, _ROWS)) else ("exact",)
