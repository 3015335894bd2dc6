"""Columns of other projects' data: what the model isn't shown is said, and what it should be shown can be named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin import datasets
from toolrl.builtin.options import FileDatasetOptions
from toolrl.chat.row_remarks import collected
from toolrl.errors import DataError
from toolrl.loop.data import CheckedTasks
from toolrl.protocols import BuildContext
from toolrl.types import Task

SCHEMA = {"name": "add", "parameters": {}}


def read(path: Path, row: dict[str, Any], **fields: str) -> tuple[Task, list[str]]:
    """The task of a row, and the remarks on it."""
    (path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    options = FileDatasetOptions(path=str(path / "rows.jsonl"), fields=fields)  # type: ignore[arg-type]
    source = datasets.jsonl(options, BuildContext("jsonl", "data.train"))
    with collected() as found:
        task = CheckedTasks(source, {"default": None}, "data.train")[0]
    return task, [remark.text for remark in found]


@pytest.mark.parametrize(
    ("row", "fields", "column"),
    [
        ({"prompt": "q", "system": "Be brief."}, {}, "system"),
        ({"prompt": "q", "system_prompt": "Be brief."}, {}, "system_prompt"),
        ({"query": "q", "history": [["a", "b"]]}, {"prompt": "query"}, "history"),
        ({"instruction": "q", "input": "1 2 3", "output": "6"}, {"prompt": "instruction", "answer": "output"}, "input"),
        ({"prompt": "q", "image": "a.png"}, {}, "image"),
        ({"prompt": "q", "videos": ["a.mp4"]}, {}, "videos"),
        ({"prompt": "q", "functions": [SCHEMA]}, {}, "functions"),
        ({"prompt": "q", "chat_template_kwargs": {"enable_thinking": False}}, {}, "chat_template_kwargs"),
        ({"prompt": " "}, {}, "prompt"),
    ],
)
def test_what_the_model_is_not_shown_is_said(
    tmp_path: Path, row: dict[str, Any], fields: dict[str, str], column: str
) -> None:
    _, said = read(tmp_path, row, **fields)
    assert [text.split()[0] for text in said] == [repr(column)]


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"prompt": "q", "system": "", "history": [], "image": None, "videos": []}, {}),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "system": "s"}, {}),
        ({"prompt": "q", "image": "a.png"}, {"images": "image"}),
        ({"prompt": "", "images": ["a.png"]}, {}),
        ({"question": "q", "input": "x"}, {"prompt": "question", "context": "input"}),
    ],
)
def test_nothing_is_said_of_what_is_empty_or_read(tmp_path: Path, row: dict[str, Any], fields: dict[str, str]) -> None:
    assert read(tmp_path, row, **fields)[1] == []


def test_a_column_makes_the_system_message(tmp_path: Path) -> None:
    row: dict[str, Any] = {"conversations": [{"from": "human", "value": "q"}], "system": "Be brief."}
    task, said = read(tmp_path, row, messages="conversations", system="system")
    assert [(it.role, it.content) for it in task.messages] == [("system", "Be brief."), ("user", "q")]
    assert (said, task.extra) == ([], {})
    task, _ = read(tmp_path, {**row, "system": ""}, messages="conversations", system="system")
    assert [it.role for it in task.messages] == ["user"]
    row["conversations"].insert(0, {"from": "system", "value": "Be long."})
    task, said = read(tmp_path, row, messages="conversations", system="system")
    assert task.messages[0].content == "Be long."
    assert ["no effect" in text for text in said] == [True]
    with pytest.raises(DataError, match=r"'system' is \['a'\], expected a text"):
        read(tmp_path, {"prompt": "q", "system": ["a"]}, system="system")


@pytest.mark.parametrize("role", ["tool_call", "tool_response", "function_call", "observation"])
@pytest.mark.parametrize("keys", [("role", "content"), ("from", "value")])
def test_calls_in_other_forms_are_refused_with_the_form_to_write(
    tmp_path: Path, role: str, keys: tuple[str, str]
) -> None:
    user = "user" if keys[0] == "role" else "human"
    row = {"messages": [dict(zip(keys, (user, "q"), strict=True)), dict(zip(keys, (role, "{}"), strict=True))]}
    with pytest.raises(DataError, match=role) as caught:
        read(tmp_path, row)
    assert "tool_calls" in str(caught.value.hint)


def test_half_of_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: 'messages\[0\]' holds '\\ud83d'"):
        read(tmp_path, {"prompt": "a \ud83d b"})
