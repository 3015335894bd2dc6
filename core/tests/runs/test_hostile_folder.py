"""A run's folder from elsewhere: no file in it can hang a command, fill the memory, or hide the runs beside it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.config.read import parse_yaml
from toolrl.errors import ConfigError, DataError
from toolrl.runs import files
from toolrl.runs.files import write_atomic
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.types import Episode

MakeRun = Callable[..., RunFolder]


def read_everything(directory: Path) -> None:
    folder = RunFolder.open(directory)
    folder.summary()
    folder.metrics_lines()
    folder.tokens()
    folder.versions()
    list(folder.episodes())


FILES = ("summary.json", "metrics.jsonl", "tokens.jsonl", "plugins.json", "episodes/000001-train.jsonl.gz")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(make_run: MakeRun, name: str) -> None:
    directory = make_run().directory
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(DataError, match="regular file") as error:
        read_everything(directory)
    assert name in str(error.value.where)


def test_a_pipe_in_the_place_of_an_output_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(OSError, match="No such device"):
        write_atomic(tmp_path / "report.html", "page")


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes/000001-train.jsonl.gz"])
def test_a_line_without_end_is_refused(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(files, "MOST_LINE", 1 << 20)
    directory = make_run().directory
    line = b'{"id": "' + b"x" * (2 << 20) + b'"}\n'
    (directory / name).write_bytes(gzip.compress(line) if name.endswith("gz") else line)
    with pytest.raises(DataError, match="line is longer than 1 MiB") as error:
        read_everything(directory)
    assert f"{name}:1" in str(error.value.where)


def test_a_summary_of_any_size_is_refused(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    directory = make_run().directory
    (directory / "summary.json").write_text(json.dumps({"status": "x" * (2 << 20)}))
    with pytest.raises(DataError, match="larger than 1 MiB"):
        read_everything(directory)


@pytest.mark.parametrize(
    "facts",
    [
        *({"total_steps": value} for value in ("1e9", 1.5, None, True, [1])),
        *({"seconds": value} for value in ("long", float("inf"), float("nan"), {})),
        {"steps": "3"}, {"episodes": []}, {"status": 7}, {"started": 1}, {"resumed_at": 3}, {"error": "x"}, {"metrics": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_summary_of_other_types_is_named(make_run: MakeRun, facts: dict[str, Any]) -> None:
    directory = make_run().directory
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps({**summary, **facts}))
    with pytest.raises(DataError, match=f"{next(iter(facts))}: expected") as error:
        RunFolder.open(directory)
    assert str(error.value.where).endswith("summary.json")


@pytest.mark.parametrize("restates", [[0, 2_000_000_000], [7, 1], [-1, 1], [0, -5], [0, 1.5], ["0", 1], 3, [0]])
def test_an_episode_that_restates_what_is_not_there_is_refused(
    make_episode: Callable[..., Episode], restates: Any
) -> None:
    record = episode_to_json(make_episode(0))
    only = {name: record[name] for name in record if name not in ("id", "task")}
    with pytest.raises(ValueError, match="restates|not an episode|values to unpack"):
        episode_from_json({**record, "trajectories": [only, {**only, "restates": restates}]})


BOMBS = {
    "aliases": "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
    "mappings": "a0: &a0 {p: 1, q: 2}\n"
    + "".join(f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(10))}}}\n" for n in range(1, 10)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_aliases_that_multiply_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"1,000,000 values") as error:
        parse_yaml(BOMBS[name], "bomb.yaml")
    assert "aliases" in str(error.value.hint)
    assert error.value.where == "bomb.yaml"


def test_merges_of_merges_count_a_key_once() -> None:
    text = "a0: &a0 {p: 1, q: 2}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], r{n}: {n}}}\n" for n in range(1, 12)
    )
    tree, problems = parse_yaml(text, "merges.yaml")
    assert tree["a11"] == {"p": 1, "q": 2, **{f"r{n}": n for n in range(1, 12)}}
    assert problems == []
