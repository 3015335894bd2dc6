"""What the first rows of a data file hold: the columns of question and answer, and what judges such answers."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from toolrl.builtin.rows import find_files, open_rows
from toolrl.chat.conversation import read_messages
from toolrl.cli.output import UsageError
from toolrl.errors import DataError

QUESTIONS = ("messages", "prompt", "question", "problem", "query", "instruction", "input", "conversations", "text",
             "task", "user_prompt", "q")  # fmt: skip
ANSWERS = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "target", "label", "expected", "output",
           "response", "answers.text", "final_answer", "expected_answer", "correct_answer", "reference_answer",
           "gold_answer", "gold", "reference", "a")  # fmt: skip
"""Usual names, the likeliest first. A column is recognised in other spellings too: `Problem`, `Final Answer`."""
CONTEXTS = ("input", "context", "passage", "document", "article", "background")
"""Texts that belong to the question: Alpaca's, Dolly's and SQuAD's, and their like."""
SYSTEMS = ("system", "system_prompt")
"""Texts that become the system message."""
_OTHERS = {"id", "environment", "task_type", "agent_name", "images", "tools", "tool_selection", "tools_kwargs"}
"""Columns that a data set reads under these names."""
_ROWS = 50
_LONG = 30
"""Characters of an answer that doesn't end a question by chance."""
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
    unseen: tuple[str, ...] = ()
    """Columns that the model isn't shown, and which hold no answer."""


def look(path: str, question: str | None = None, answer: str | None = None) -> Columns:
    """The columns of a JSON Lines, JSON, parquet or CSV file, or of the first file of a glob. `question` and `answer`
    name columns that the caller knows. Raises DataError, UsageError."""
    rows, count = _first_rows(path)
    if not rows:
        raise DataError("there are no rows", where=path, hint='A row is a line such as {"prompt": …, "answer": …}.')
    asked = question or _question(rows[0], path)
    _column(rows[0], (), asked, path, "--question")
    known = _column(rows[0], [name for name in _there(rows[0], ANSWERS) if name != asked], answer, path, "--answer")
    # Where a row has both, `fields` says which one is meant.
    both = all(rows[0].get(name) is not None for name in ("messages", "prompt"))
    field = "messages" if asked == "messages" else "prompt"
    fields = {field: asked} if both or asked not in ("messages", "prompt") else {}
    if known not in (None, "answer"):
        fields["answer"] = str(known)
    context = _context(rows, asked, known)
    if context is not None:
        fields["context"] = context
    systems = _there(rows[0], SYSTEMS)
    system = next((name for name in systems if any(isinstance(row.get(name), str) for row in rows)), None)
    if system is not None:
        fields["system"] = system
    longest = max(len(str(_value(row, asked))) + len(str(row.get(context) or "")) for row in rows)
    answers = [_value(row, known) for row in rows] if known else []
    unseen = _unseen(rows, {asked, known, context, system})
    return Columns(count, asked, known, fields, longest, _rewards(answers), unseen)


def _first_rows(path: str) -> tuple[list[Mapping[str, Any]], int]:
    """The first rows, and the number of all. Raises DataError."""
    if is_csv(path):
        with Path(path).expanduser().open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows: list[Mapping[str, Any]] = [dict(row) for row in islice(reader, _ROWS)]
            return rows, len(rows) + sum(1 for _ in reader)
    files = [open_rows(file) for file in find_files(path, "--data")]
    first = files[0]
    return [first[index] for index in range(min(_ROWS, len(first)))], sum(map(len, files))


def is_csv(path: str) -> bool:
    """Whether a path is a CSV file that is there, which the data set `huggingface` reads."""
    return path.endswith(".csv") and Path(path).expanduser().is_file()


def _question(row: Mapping[str, Any], path: str) -> str:
    """The first usual column that asks something. Raises UsageError if there is none."""
    there = _there(row, QUESTIONS)
    asking = [name for name in there if not _is_answered(row, name)]
    if asking:
        return asking[0]
    if there:
        raise UsageError(
            f"{there[0]!r} holds whole conversations, which end with the answer",
            where=path,
            hint="Name a column that only asks by --question COLUMN. `toolrl sft` trains on whole conversations.",
        )
    raise UsageError(
        f"no column looks like a question; the first row has: {', '.join(row)}",
        where=path,
        hint="Name it by --question COLUMN.",
    )


def _is_answered(row: Mapping[str, Any], name: str) -> bool:
    """Whether a column holds the answer as well: a conversation whose last message is the assistant's, or a text that
    ends with another column's long answer."""
    try:
        last = read_messages(row[name])[-1]
    except DataError:
        return False  # `toolrl config check --data` tells of it
    answers = [str(_value(row, other) or "").strip() for other in _there(row, ANSWERS) if other != name]
    ends = any(len(answer) >= _LONG and last.content.rstrip().endswith(answer) for answer in answers)
    return last.role == "assistant" or ends


def _context(rows: Sequence[Mapping[str, Any]], asked: str, known: str | None) -> str | None:
    """The column of a text that belongs to the question and isn't part of it yet, if a row has one."""
    questions = [_value(row, asked) for row in rows]
    if not all(isinstance(question, str | None) for question in questions):
        return None
    for name in _there({key: "" for row in rows for key in row}, CONTEXTS):
        values = [row.get(name) for row in rows]
        # An empty one counts as well: later rows may fill it.
        texts = any(value is not None for value in values) and all(isinstance(value, str | None) for value in values)
        if name in (asked, known) or not texts:
            continue
        if not any(value and value in (question or "") for value, question in zip(values, questions, strict=True)):
            return name
    return None


def _unseen(rows: Sequence[Mapping[str, Any]], taken: set[str | None]) -> tuple[str, ...]:
    read = {str(name).partition(".")[0] for name in taken} | _OTHERS
    return tuple(dict.fromkeys(name for row in rows for name in row if name not in read))


def _column(row: Mapping[str, Any], usual: Sequence[str], given: str | None, path: str, option: str) -> str | None:
    """The given column, else the first of the usual ones that a row has."""
    if given is not None and _value(row, given) is None:
        raise UsageError(f"{option}: the first row has no {given!r}", where=path, hint=f"It has: {', '.join(row)}.")
    return given or next((name for name in usual if _value(row, name) is not None), None)


def _there(row: Any, usual: Sequence[str]) -> list[str]:
    """The usual columns that a row has a value for, as the row spells them."""
    found = (_spelled(row, path.split(".")) for path in usual)
    return list(dict.fromkeys(name for name in found if name is not None))


def _spelled(row: Any, path: Sequence[str]) -> str | None:
    """A column's path as the row spells it; None where it has none, or nothing there."""
    if not path:
        return None if row is None else ""
    if not isinstance(row, Mapping):
        return None
    same = [path[0], *(key for key in row if isinstance(key, str) and _plain(key) == path[0])]
    for key in (key for key in same if key in row):
        rest = _spelled(row[key], path[1:])
        if rest is not None:
            return f"{key}.{rest}" if rest else key
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


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
