"""`toolrl reasoning-gym list`."""

from __future__ import annotations

import json

import pytest

from toolrl.cli.main import main

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
