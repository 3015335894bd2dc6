"""`toolrl reasoning-gym list` and `data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gym_tasks import data

from toolrl.builtin.datasets import jsonl
from toolrl.builtin.options import FileDatasetOptions
from toolrl.cli.main import main
from toolrl_testing import make_build_context

pytestmark = pytest.mark.usefixtures("library")


def run(*arguments: object) -> int:
    return main(["reasoning-gym", *map(str, arguments)])


def test_list_shows_generators_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 200
    assert not any(line.startswith("composite ") for line in lines), "the library's own mixture is none"
    assert "    min_trials: 3, max_trials: 15, allow_exact: true, allow_at_least: true" in lines


def test_list_finds_by_name_and_by_category(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "chain_sum", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {item["name"] for item in found} == {"chain_sum", "decimal_chain_sum"}
    assert found[0]["config"]["min_terms"] == 2
    assert run("list", "probability/") == 0
    assert "coin_flip (probability)" in capsys.readouterr().out
    assert run("list", "nothing_such") == 1


def test_data_writes_rows_that_jsonl_reads_as_the_data_sets_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "rows.jsonl"
    settings = ("--set", "chain_sum.min_terms=4", "--size", 12, "--seed", 3)
    assert run("data", target, "chain_sum=2", "rearc", *settings) == 0
    assert capsys.readouterr().out == f"{target}: 12 tasks\n"
    read = jsonl(FileDatasetOptions(path=str(target)), make_build_context("jsonl"))
    source = data({"name": "chain_sum", "weight": 2, "config": {"min_terms": 4}}, "rearc", size=12, seed=3)
    assert [read[index] for index in range(12)] == [source[index] for index in range(12)]
    assert [path.name for path in target.parent.iterdir()] == ["rows.jsonl"]


def test_data_replaces_a_file_only_when_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rows.jsonl"
    target.write_text("mine")
    assert run("data", target, "lcm", "--size", 2) != 0
    assert "--overwrite" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert run("data", target, "lcm", "--size", 2, "--overwrite", "--instruction", "") == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == [
        row["reasoning_gym"]["entry"]["question"] for row in rows
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lcm", "lcm=2"], "'lcm' is given twice"),
        (["lcm=much"], "generators.0.weight: Input should be a valid number"),
        (["lcm", "--set", "gcd.x=1"], "expected GENERATOR.KEY=VALUE with one of lcm"),
        (["lcm", "--set", "lcm"], "expected GENERATOR.KEY=VALUE"),
        (["lcm", "--set", "lcm.x=["], "isn't YAML"),
        (["lcm", "--set", "lcm.size=3"], "`size` is an option of the data set"),
        (["lcm", "--size", "0"], "size: Input should be greater than or equal to 1"),
        (["lcn"], "did you mean 'lcm'?"),
    ],
)
def test_mistakes_are_told_and_leave_no_file(
    arguments: list[Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", tmp_path / "rows.jsonl", *arguments) != 0
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
