"""The data set `huggingface` with the real library, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from toolrl.errors import DataError
from toolrl_plugin_huggingface.dataset import load
from toolrl_plugin_huggingface.options import HuggingFaceOptions
from toolrl_testing import make_build_context

ROWS = [{"question": f"{index} + 1?", "answer": str(index + 1), "level": index} for index in range(600)]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(path: Path) -> Path:
    """ROWS in the form of the path's ending."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        lines = [ROWS[0].keys(), *(map(str, row.values()) for row in ROWS)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
    return path


def tasks(path: Path | str, **options: Any) -> Any:
    given = HuggingFaceOptions(path=str(path), fields={"prompt": "question"}, **options)
    return load(given, make_build_context("huggingface"))


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "parquet"])
def test_a_file_is_read_by_its_ending(ending: str, tmp_path: Path) -> None:
    found = tasks(write(tmp_path / f"train.{ending}"), limit=500)
    assert len(found) == 500
    assert (found[7].id, found[7].messages[0].content, str(found[7].answer)) == ("train-7", "7 + 1?", "8")
    assert found[7].extra == {"level": 7}


def test_the_words_of_a_csv_file_are_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer,level\nCode of Namibia?,NA,1\nNothing?,None,2\nEmpty?,,3\n")
    found = tasks(tmp_path / "a.csv")
    assert [found[index].answer for index in range(3)] == ["NA", "None", None]
    assert found[0].extra == {"level": 1}


def test_a_folder_has_splits_slices_and_files(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write(tmp_path / f"{name}.jsonl")
    assert len(tasks(tmp_path)) == 600
    assert [task.id for task in tasks(tmp_path, split="test[10:12]")] == [f"{tmp_path.name}-0", f"{tmp_path.name}-1"]
    assert tasks(tmp_path, split="test[10:12]")[0].messages[0].content == "10 + 1?"
    assert len(tasks(tmp_path, files=["test.jsonl"])) == 600
    with pytest.raises(DataError, match='Unknown split "dev"'):
        tasks(tmp_path, split="dev")
    with pytest.raises(DataError, match="'other' not found"):
        tasks(tmp_path, config="other")


def test_a_pattern_that_matches_no_file_is_refused(tmp_path: Path) -> None:
    """Beside one that does, the library passes it over."""
    write(tmp_path / "train.jsonl")
    assert len(tasks(tmp_path, files=["train.jsonl", "tr*.jsonl"], limit=5)) == 5
    for files in (["train.jsonl", "test*.jsonl"], ["none.jsonl"]):
        with pytest.raises(DataError, match=r"test\*\.jsonl|none\.jsonl"):
            tasks(tmp_path, files=files)


def test_streaming_reads_the_first_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl")
    found = tasks(tmp_path, streaming=True, limit=300)
    assert [task.messages[0].content for task in found] == [row["question"] for row in ROWS[:300]]
    with pytest.raises(ValidationError, match="set `limit`"):
        tasks(tmp_path, streaming=True)


def test_pictures_are_bytes_and_nulls_are_absent(tmp_path: Path) -> None:
    rows = [
        {"prompt": "See?", "images": [{"bytes": b"png", "path": None}], "tools_kwargs": {"add": None}, "answer": None}
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    options = HuggingFaceOptions(path=str(tmp_path / "a.parquet"))
    (task,) = load(options, make_build_context("huggingface"))
    assert task.messages[0].media[0].data == b"png"
    assert (task.answer, task.tools_kwargs) == (None, {})


def test_what_is_not_there_is_said_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for path, says in {
        "./nowhere": "no file or folder './nowhere'",
        "data/none.csv": "no file or folder",
        str(tmp_path / "a.txt"): "end in '.txt'",
    }.items():
        with pytest.raises(DataError, match=says):
            HuggingFaceOptions(path=path).check_files()


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_the_hub_a_run_stops_at_once(offline: str, tmp_path: Path) -> None:
    script = """
from toolrl.protocols import BuildContext
from toolrl_plugin_huggingface.dataset import load
from toolrl_plugin_huggingface.options import HuggingFaceOptions
load(HuggingFaceOptions(path="owner/name"), BuildContext("huggingface"))
"""
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": offline}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert "'owner/name' is no folder here and isn't in the Hub's cache, and the Hub can't be reached" in done.stderr
    assert "Retrying" not in done.stderr, "no waiting"
