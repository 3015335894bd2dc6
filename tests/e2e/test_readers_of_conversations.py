"""Every data set reads a conversation in the same way: JSON text is decoded, answers are bound to their calls, keys
without effect are remarked on, and what is no conversation names its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.building import build_component
from toolrl.chat.row_remarks import collected, notes
from toolrl.config.frame import ComponentUse
from toolrl.errors import DataError
from toolrl.loop.data import CheckedTasks
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext
from toolrl.python_objects import take_objects


def call(id_: str, name: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}


USER = {"role": "user", "content": "1 + 2 and 3 * 4?"}
SAID = {"role": "assistant", "content": "", "tool_calls": [call("a", "add"), call("b", "multiply")]}
SWAPPED = [
    USER,
    SAID,
    {"role": "tool", "content": "12", "tool_call_id": "b"},
    {"role": "tool", "content": "3", "tool_call_id": "a"},
]


def json_lines(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    file = path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return {"path": str(file)}


def parquet(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    other = {**row, "messages": [USER]} if isinstance(row["messages"], list) else row
    parquet.write_table(arrow.Table.from_pylist([row, other]), path / "rows.parquet")
    return {"path": str(path / "rows.parquet")}


def csv(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    frame = pytest.importorskip("pandas").DataFrame([row])
    frame["messages"] = [row["messages"] if isinstance(row["messages"], str) else json.dumps(row["messages"])]
    frame.to_csv(path / "rows.csv", index=False)
    return {"path": str(path / "rows.csv")}


def as_prompt(write: Callable[[Path, dict[str, Any]], dict[str, Any]], **options: Any) -> Any:
    """For a reader that looks for `prompt`."""

    def written(path: Path, row: dict[str, Any]) -> dict[str, Any]:
        return write(path, {**row, "prompt": row["messages"], "reward_model": {"ground_truth": "15"}}) | options

    return written


READERS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], dict[str, Any]]]] = {
    "jsonl": ("jsonl", json_lines),
    "parquet": ("parquet", parquet),
    "huggingface": ("huggingface", json_lines),
    "csv": ("huggingface", csv),
    "verl": ("verl", as_prompt(json_lines)),
    "areal_tir": ("areal_tir", json_lines),
    "search_r1": ("search_r1", as_prompt(json_lines, prompt="row")),
    "geo3k": ("geo3k", as_prompt(json_lines)),
}


@pytest.fixture(params=[*READERS, "list", "datasets", "pandas"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """The checked tasks of a row with these messages."""
    name = request.param

    def tasks(messages: Any) -> CheckedTasks:
        registry, row = load_registry(), {"messages": messages, "answer": "15"}
        if name in READERS:
            use, write = READERS[name]
            if use not in registry.names("datasets"):
                pytest.skip(f"{use} isn't installed")
            if use == "huggingface":
                monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")
            chosen = ComponentUse(use=use, options=write(tmp_path, row))
        else:
            made = {
                "list": lambda: [row],
                "datasets": lambda: pytest.importorskip("datasets").Dataset.from_list([row]),
                "pandas": lambda: pytest.importorskip("pandas").DataFrame([row]),
            }[name]()
            tree, registry = take_objects({"data": {"train": made}}, registry)
            chosen = ComponentUse(use=tree["data"]["train"], options={})
        source = build_component(registry, "datasets", chosen, BuildContext(chosen.use, "data.train"), "data.train")
        return CheckedTasks(source, {"default": None}, "data.train")

    return tasks


@pytest.mark.parametrize("form", [list, json.dumps])
def test_answers_are_bound_to_their_calls(read: Any, form: Any) -> None:
    task = read(form(SWAPPED))[0]
    assert [message.role for message in task.messages] == ["user", "assistant", "tool", "tool"]
    assert [message.content for message in task.messages[2:]] == ["3", "12"]
    assert [dict(it.arguments) for it in task.messages[1].tool_calls] == [{"a": 1}, {"a": 1}]


def test_a_key_without_effect_is_remarked_on_with_its_place(read: Any) -> None:
    tasks = read([{**USER, "mood": "good"}])
    with collected() as found:
        assert tasks[0].messages[0].content == USER["content"]
    (line,) = [line for line in notes(found) if "mood" in line]
    assert "[0].mood' has no effect" in line
    assert line.startswith(("/", "train[0]: "))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([*SWAPPED[:3], {**SWAPPED[3], "tool_call_id": "z"}], "'z', which no call of"),
        (SWAPPED[:3], "has no answer"),
        ([*SWAPPED, {"role": "assistant", "content": "3 and 12"}], "end with the assistant's"),
        ([USER, {"role": "tool", "content": "3"}], "follows no assistant message"),
        ([USER, {**SAID, "tool_calls": [{"name": "add", "args": "{}"}]}, SWAPPED[2]], "has no 'arguments'"),
        (str(SWAPPED), "aren't JSON"),
    ],
)
def test_what_cannot_be_a_prompt_names_its_row(read: Any, messages: Any, says: str) -> None:
    tasks = read(messages)
    with pytest.raises(DataError, match=says) as caught:
        tasks[0]
    assert (caught.value.where or "").startswith(("/", "train[0]"))
