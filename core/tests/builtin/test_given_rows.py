"""Rows that are Python objects are read as the same rows of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin import datasets as file_datasets
from toolrl.builtin.options import FileDatasetOptions
from toolrl.errors import ConfigError, DataError
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext
from toolrl.python_objects import RowsOptions, take_objects
from toolrl.types import Task

CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": 1}}}],
}
OTHER = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "b", "function": {"name": "g", "arguments": {"b": "x"}}}],
}
ROWS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": "q"}, CALL, {"role": "tool", "content": "1", "tool_call_id": "a"}],
        "answer": ["1", "one"],
        "tools": ["stats"],
        "tools_kwargs": {"f": {"create_kwargs": {"x": 1}}},
        "level": 3,
        "share": 0.5,
        "note": None,
    },
    {
        "messages": [{"role": "user", "content": "q"}, OTHER, {"role": "tool", "content": "2", "tool_call_id": "b"}],
        "answer": ["2"],
        "tools": ["stats"],
        "tools_kwargs": {"g": {"execute_kwargs": {"y": [{"z": 1}, {"u": 2}]}}},
        "level": 4,
        "note": "n",
    },
]


def tasks(value: Any) -> list[Task]:
    """The tasks of what stands at `data.train`."""
    _, registry = take_objects({"data": {"train": value}}, Registry([]))
    (component,) = registry.components("datasets")
    source = component.component.load()(RowsOptions(), None)
    return [source[index] for index in range(len(source))]


@pytest.fixture
def expected(tmp_path: Path) -> list[Task]:
    """The tasks of the same rows in a file."""
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    source = file_datasets.jsonl(FileDatasetOptions(path=str(tmp_path / "train.jsonl")), BuildContext("jsonl"))
    return [source[index] for index in range(2)]


def _datasets() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(ROWS)


def _arrow() -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(ROWS)


def _frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def _arrow_frame() -> Any:
    pytest.importorskip("pandas")
    return _arrow().to_pandas()


WAYS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "Dataset": _datasets,
    "Dataset with numpy's format": lambda: _datasets().with_format("numpy"),
    "Arrow": _arrow,
    "Arrow batch": lambda: _arrow().to_batches()[0],
    "Arrow's structs": lambda: _arrow().to_struct_array(),
    "pandas": _frame,
    "pandas with an index": lambda: _frame().set_index(pytest.importorskip("pandas").Index([7, 5])),
    "pandas' records": lambda: _frame().to_dict("records"),
    "pandas of Arrow": lambda: _arrow_frame(),
    "records of pandas of Arrow": lambda: _arrow_frame().to_dict("records"),
    "numpy": lambda: pytest.importorskip("numpy").array(ROWS, dtype=object),
    "pandas' column": lambda: pytest.importorskip("pandas").Series(ROWS, index=[7, 5]),
    "polars": lambda: pytest.importorskip("polars").DataFrame(ROWS),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_gives_the_tasks_of_a_file(way: str, expected: list[Task]) -> None:
    found = tasks(WAYS[way]())
    for task, right in zip(found, expected, strict=True):
        assert json.dumps(task.answer) == json.dumps(right.answer), "lists, not arrays"
        assert (task.tools, task.messages, task.tools_kwargs) == (right.tools, right.messages, right.tools_kwargs)
        there = {key: value for key, value in right.extra.items() if value is not None}
        assert json.dumps(task.extra, sort_keys=True) == json.dumps(there, sort_keys=True)
    assert [task.id for task in found] == ["train-0", "train-1"]


def test_a_transform_and_chosen_columns_of_a_data_set_count() -> None:
    shouted = _datasets().with_transform(lambda batch: {"prompt": [f"{level}!" for level in batch["level"]]})
    assert [task.messages[0].content for task in tasks(shouted)] == ["3!", "4!"]
    chosen = _datasets().with_format("numpy", columns=["messages"])
    assert [(task.answer, task.extra) for task in tasks(chosen)] == [(None, {})] * 2


def test_numpys_values_are_pythons_and_missing_cells_are_absent() -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    row = {
        "prompt": numpy.str_("q"), "answer": numpy.int64(3), "right": numpy.bool_(True), "a": numpy.float32("nan"),
        "b": pandas.NaT, "c": pandas.NA, "d": float("nan"), "e": {"n": numpy.array([[1, 2]])}, "f": (1, 2),
    }  # fmt: skip
    (task,) = tasks([row])
    assert json.dumps([task.answer, task.extra]) == '[3, {"right": true, "e": {"n": [[1, 2]]}, "f": [1, 2]}]'
    assert task.messages[0].content == "q"
    frame = pandas.DataFrame([{"prompt": "a", "n": 1, "x": 0.5}, {"prompt": "b", "n": 2}])
    assert [json.dumps(task.extra) for task in tasks(frame)] == ['{"n": 1, "x": 0.5}', '{"n": 2}']


def test_an_explicit_null_inside_of_a_list_of_dicts_stays() -> None:
    (task,) = tasks([{"prompt": "q", "info": {"a": None}, "note": None}])
    assert task.extra == {"info": {"a": None}}


def _splits() -> Any:
    library = pytest.importorskip("datasets")
    return library.DatasetDict(train=_datasets(), test=_datasets())


@pytest.mark.parametrize(
    ("make", "says", "hint"),
    [
        (lambda: (row for row in ROWS), "a generator has no length", "a list of dicts"),
        (lambda: _datasets().to_iterable_dataset(), "IterableDataset has no length", "stream.take"),
        (_splits, "the data sets train, test", r"data\['train'\]"),
        (lambda: {"prompt": ["a"], "answer": ["b"]}, "the lists prompt, answer", "a list of dicts"),
        (lambda: ["a"], "row 0 is a str", "a list of dicts"),
        (lambda: b"rows", "a bytes has no length", "a list of dicts"),
        (lambda: 7, "a int has no length", "a list of dicts"),
        (
            lambda: pytest.importorskip("pandas").DataFrame([["a", "b"]], columns=["prompt", "prompt"]),
            "duplicate column prompt",
            "Rename",
        ),
        (lambda: pytest.importorskip("polars").DataFrame(ROWS).lazy(), "LazyFrame has no length", "collect"),
    ],
)
def test_what_has_no_rows_says_what_to_give(make: Callable[[], Any], says: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^data.train: .*{says}(?s:.*){hint}"):
        tasks(make())


def test_splits_given_over_a_configs_data_set_are_told_as_well() -> None:
    import toolrl

    config = {"data": {"train": {"use": "jsonl", "options": {"path": "a.jsonl"}}}}
    with pytest.raises(ConfigError, match=r"data.train: a dict of the data sets train, test"):
        toolrl.train(config, data={"train": _splits()})


def test_a_duplicate_column_of_arrow_names_it(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table([arrow.array(["a"]), arrow.array(["b"])], names=["prompt", "prompt"])
    with pytest.raises(DataError, match=r"train\[0\]: duplicate column 'prompt'"):
        tasks(table)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="duplicate column 'prompt'") as caught:
        file_datasets.parquet(FileDatasetOptions(path=str(tmp_path / "a.parquet")), BuildContext("parquet"))[0]
    assert caught.value.where == f"{tmp_path / 'a.parquet'}[0]"


@pytest.mark.parametrize("way", ["numpy", "pandas", "Arrow", "parquet", "Dataset"])
def test_short_floats_are_the_numbers_that_were_written(way: str, tmp_path: Path) -> None:
    """0.1 of 32 bits is no 0.10000000149: ground truths are compared as texts."""
    numpy = pytest.importorskip("numpy")
    values = numpy.array([0.1, 2.5], dtype="float32")
    columns = {"prompt": ["q", "q"], "answer": values}
    if way == "numpy":
        found = tasks([{"prompt": "q", "answer": value, "more": [value]} for value in values])
    elif way == "pandas":
        found = tasks(pytest.importorskip("pandas").DataFrame(columns))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({**columns, "more": [[value] for value in values]})
        if way == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
            options = FileDatasetOptions(path=str(tmp_path / "a.parquet"))
            source = file_datasets.parquet(options, BuildContext("parquet"))
            found = [source[0], source[1]]
        else:
            found = tasks(table if way == "Arrow" else pytest.importorskip("datasets").Dataset(table))
    assert [task.answer for task in found] == [0.1, 2.5]
    assert [task.extra.get("more", [0.1]) for task in found][:1] == [[0.1]]


def test_times_of_numpy_are_texts_and_not_nanoseconds() -> None:
    numpy = pytest.importorskip("numpy")
    (task,) = tasks([{"prompt": "q", "answer": numpy.datetime64("2020-01-02T03:04:05", "ns")}])
    assert str(task.answer).startswith("2020-01-02T03:04:05")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (ROWS, "list"),
        ([{"prompt": "?", "use": "x"}], "list"),
        ([ROWS, ROWS], ["list", "list-2"]),
        (
            [{"use": ROWS, "share": 2}, {"use": "other", "share": 1}],
            [{"use": "list", "share": 2}, {"use": "other", "share": 1}],
        ),
        ([Task("a", ())], "list"),
    ],
)
def test_a_list_of_rows_or_of_data_sets(value: Any, named: Any) -> None:
    tree, _ = take_objects({"data": {"train": value}}, Registry([]))
    assert tree["data"]["train"] == named
