"""The data set `search_r1`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import DataError
from toolrl_plugin_search.dataset import SearchR1Data
from toolrl_plugin_search.options import INSTRUCTION, SearchR1DataOptions
from toolrl_testing import make_build_context

ROWS: list[dict[str, Any]] = [
    {
        "id": "train_0",
        "question": "who wrote faust?",
        "golden_answers": ["Goethe", "Johann Wolfgang von Goethe"],
        "data_source": source,
        "prompt": [{"role": "user", "content": "Answer … <search> … who wrote faust?\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Goethe"]}},
        "extra_info": {"split": "train", "index": index},
    }
    for index, source in enumerate(["nq", "hotpotqa", "nq"])
]


def read(path: Path | list[str], **options: Any) -> SearchR1Data:
    given = [str(name) for name in path] if isinstance(path, list) else str(path)
    return SearchR1Data(SearchR1DataOptions(path=given, **options), make_build_context("search_r1"))


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="reading parquet files needs pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "json"])
def test_search_r1s_rows(tmp_path: Path, ending: str) -> None:
    data = read(written(tmp_path / f"train.{ending}", ROWS))
    assert len(data) == 3
    task = data[0]
    assert task.answer == ["Goethe"]
    assert task.messages[-1].content == f"who wrote faust?\n\n{INSTRUCTION}"
    assert task.extra["question"] == "who wrote faust?"
    assert task.extra["data_source"] == "nq"
    assert task.extra["extra_info"] == {"split": "train", "index": 0}
    assert len({one.id for one in (data[0], data[1], data[2])}) == 3


def test_the_rows_own_prompt(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", ROWS)
    task = read(path, prompt="row", system_prompt="Be brief.", environment="search")[1]
    assert [message.role for message in task.messages] == ["system", "user"]
    assert task.messages[1].content.startswith("Answer … <search>")
    assert task.environment == "search"
    with pytest.raises(DataError, match="no `prompt`"):
        read(written(tmp_path / "plain.jsonl", [{"question": "q", "answer": "a"}]), prompt="row")[0]


def test_plainer_rows(tmp_path: Path) -> None:
    rows = [{"Question": "When?", "Answer": 1999}, {"question": "Who?", "answer": ["a", "b"]}]
    first, second = written(tmp_path / "a.json", rows[:1]), written(tmp_path / "b.jsonl", rows[1:])
    data = read([str(first), str(second)], instruction="")
    assert [(task.messages[0].content, task.answer) for task in (data[0], data[1])] == [
        ("When?", ["1999"]),
        ("Who?", ["a", "b"]),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "a"}, "needs a text `question`"),
        ({"question": " ", "answer": "a"}, "needs a text `question`"),
        ({"question": "q"}, "needs `golden_answers`"),
        ({"question": "q", "golden_answers": []}, "needs `golden_answers`"),
        ({"question": "q", "golden_answers": ["", None, " "]}, "needs `golden_answers`"),
        ({"question": "q", "answer": float("nan")}, "needs `golden_answers`"),
        ({"question": "q", "answers": "['a' 'b']"}, "a list that isn't JSON"),
        ({"question": "q", "answers": [{"text": "a"}]}, "an answer is {'text': 'a'}, expected a text or a number"),
    ],
)
def test_bad_rows_are_told_with_their_place(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}, row])
    with pytest.raises(DataError, match=message) as raised:
        read(path)[1]
    assert raised.value.where == f"{path}:2"


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answers": '["a", "b"]'}, ["a", "b"]),
        ({"answer": "[1, 2]"}, ["[1, 2]"]),
        ({"answer": "[sic]"}, ["[sic]"]),
        ({"reward_model": '{"ground_truth": {"target": ["a"]}}'}, ["a"]),
    ],
)
def test_answers_as_json_text(tmp_path: Path, row: dict[str, Any], answers: list[str]) -> None:
    assert read(written(tmp_path / "a.jsonl", [{"question": "q", **row}]))[0].answer == answers
