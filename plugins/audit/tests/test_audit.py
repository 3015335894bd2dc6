"""`toolrl audit` on clean and broken dumps of each system."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.errors import DataError
from toolrl_plugin_audit.audit import CHECKS
from toolrl_plugin_audit.command import audit

Write = Callable[..., Path]


def found(path: Path, **settings: Any) -> list[str]:
    return [finding.check for finding in audit(path, **settings).findings]


def test_a_clean_dump_has_no_finding(system: str, write: Write) -> None:
    report = audit(write(system))
    assert (report.rows, report.findings) == (32, [])


@pytest.mark.parametrize("check", CHECKS)
def test_a_fault_is_found_and_nothing_else(check: str, system: str, write: Write, faults: Any) -> None:
    report = audit(write(system, faults[check][system]))
    assert {finding.check for finding in report.findings} == {check}, report
    example = report.findings[0].examples[0]
    assert any(word in example["place"] for word in ("episode", ".jsonl:", ", row "))
    assert example["text"]


def test_a_restated_turn_in_other_tokens(write: Write) -> None:
    """Trajectories that a rewritten history opens may differ; one that only tokenises the same turn anew may not."""

    def branch(again: list[int]) -> Callable[[list[dict[str, Any]]], None]:
        def change(records: list[dict[str, Any]]) -> None:
            names = (
                "ids",
                "loss_mask",
                "logprobs",
                "weight_versions",
                "prompt_length",
                "turns",
                "messages",
                "media",
                "routes",
            )
            first = {name: records[0].pop(name) for name in names}
            second = first | {"ids": [1, 2, 3, *again, 20, 21, 30, 31], "turns": first["turns"][1:]}
            shift = len(again) - 3
            for name, fill in (("loss_mask", 0), ("logprobs", 0.0), ("weight_versions", -1)):
                second[name] = [fill] * (8 + shift) + first[name][8:]
                first[name] = first[name][:8]
            tokens = {"tokens": [8 + shift, 10 + shift]}
            second["turns"] = [
                {**turn, "segments": [segment | tokens for segment in turn["segments"]]} for turn in second["turns"]
            ]
            second["prompt_length"] = 8 + shift
            first |= {"ids": first["ids"][:8], "turns": first["turns"][:1]}
            records[0]["trajectories"] = [first, second]

        return change

    assert audit(write("toolrl", branch([10, 11, 12]))).findings == []
    assert audit(write("toolrl", branch([20]))).findings == [], "shortened, as a summary does"
    assert found(write("toolrl", branch([13, 12]))) == ["continuation"], "13 is the text of 10 and 11"


def test_what_a_format_does_not_hold_is_said(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(write("trl"))]) == 0
    printed = capsys.readouterr().out
    assert "masks         -" in printed
    assert "Not checked: the rollouts don't hold what it needs" in printed
    assert "Nothing found. Not checked: continuation, masks, versions." in printed


NAN = float("nan")
REWARD = {"verl": "score", "trl": "correct_reward", "prime": "reward"}
UNUSABLE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("trl", "advantages", "advantage is null", {"advantage": None}),
    ("trl", "advantages", "advantage is null", {"advantage": NAN}),  # as pandas writes it
    ("trl", "rewards", "no reward function scored it", {"correct_reward": NAN}),
    ("verl", "rewards", "score is null", {"score": None}),
    ("verl", "rewards", "reward nan", {"score": NAN}),
    ("verl", "rewards", "score is str 'right'", {"score": "right"}),
    ("verl", "rewards", "score is dict", {"score": {"exact": 1}}),
    ("prime", "rewards", "reward is null", {"reward": None}),
    ("prime", "advantages", "advantage nan", {"advantage": NAN}),
    ("prime", "advantages", "advantage is str", {"advantage": "high"}),
    ("verl", "advantages", "nan", {"response_ids": [1, 2], "response_mask": [1, 1], "advantages": [0.5, NAN]}),
]


@pytest.mark.parametrize(("name", "check", "told", "fields"), UNUSABLE)
@pytest.mark.parametrize("everywhere", [True, False])
def test_rewards_and_advantages_that_are_no_numbers_are_a_finding(
    write: Write, name: str, check: str, told: str, fields: dict[str, Any], everywhere: bool
) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        for record in records if everywhere else records[4:8]:
            record.update(fields)

    report = audit(write(name, change))
    (finding,) = [it for it in report.findings if "no finite numbers" in it.problem]
    assert (finding.check, finding.count) == (check, 32 if everywhere else 4)
    assert told in finding.examples[0]["text"]


NOT_READ: list[tuple[str, list[str], str, dict[str, Any]]] = [
    ("trl", ["masks"], "completion_mask is empty", {"completion_ids": [], "completion_mask": []}),
    ("trl", ["masks"], "tool_mask is null", {"tool_mask": None}),
    ("trl", ["tools", "truncation"], "completion is null", {"completion": None}),
    ("verl", ["masks"], "response_mask is str", {"response_ids": [1], "response_mask": "yes"}),
    ("verl", ["versions"], "min_global_steps is null", {"min_global_steps": None}),
    ("prime", ["advantages"], "advantage is null", {"advantage": None}),
    ("prime", ["masks", "continuation"], "trajectory is null", {"trajectory": None}),
    ("prime", ["masks", "continuation"], "trajectory is empty", {"trajectory": []}),
    ("prime", ["tools", "truncation"], "completion is null", {"completion": None}),
    ("prime", ["versions"], "policy_version is null", {"policy_version": None}),
    ("prime_trace", ["versions"], "off_policy_steps is null", {"off_policy_steps": None, "policy_version": None}),
    ("prime_trace", ["masks"], "nodes is empty", {"nodes": []}),
]


@pytest.mark.parametrize(("name", "checks", "told", "fields"), NOT_READ)
def test_a_field_that_holds_nothing_usable_is_said_with_its_check(
    write: Write, capsys: pytest.CaptureFixture[str], name: str, checks: list[str], told: str, fields: dict[str, Any]
) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        for record in records[1:]:  # The first one tells the format.
            record.update(fields)

    folder = write(name, change)
    report = audit(folder)
    assert report.findings == []
    for check in checks:
        assert report.checks[check].rows <= 1
        assert told in (report.checks[check].not_run or "")
        assert re.search("3[12]×", report.checks[check].not_run or ""), (
            "a parquet file's first row has the column as well"
        )
    assert main(["audit", str(folder)]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("field", ["prompt_ids", "completion_ids", "completion_mask", "prompt_mask"])
@pytest.mark.parametrize("value", [None, "text", ["a"], {}])
def test_masks_are_not_made_up(write: Write, field: str, value: Any) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        for record in records:
            record["trajectory"][1]["tokens"][field] = value

    report = audit(write("prime", change))
    assert (report.findings, report.checks["masks"].rows, report.checks["continuation"].rows) == ([], 0, 0)
    assert field in str(report.checks["masks"].not_run)


def test_exit_status_and_json(write: Write, faults: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write("prime", faults["masks"]["prime"]))
    assert main(["audit", folder, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert finding["check"] == "masks"
    assert finding["examples"][0]["place"] == "rollouts/step_1/train_rollouts.jsonl:5"
    assert told["checks"]["continuation"]["rows"] == 32


MASK, TOOLS_TOO = [1, 1, 1, 0, 0, 1, 1], [1] * 7
EXTRAS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("verl", {"response_mask": TOOLS_TOO, "loss_mask": MASK}, []),
    ("trl", {"completion_ids": list(range(7)), "completion_mask": TOOLS_TOO, "tool_mask": MASK}, []),
    ("trl", {"completion_ids": list(range(7)), "completion_mask": TOOLS_TOO, "tool_mask": TOOLS_TOO}, ["masks"]),
    ("verl", {"finish_reason": {"type": "length", "length": 7}}, ["truncation"]),
    ("verl", {"finish_reasons": ["stop", "length"]}, ["truncation"]),
    ("verl", {"termination_reason": "MAX_RESPONSE_LENGTH_EXCEEDED"}, ["truncation"]),
    ("verl", {"turns": [{"prompt": [1], "response": [2]}, {"prompt": [1, 5], "response": [4]}]}, ["continuation"]),
]


@pytest.mark.parametrize(("name", "extras", "checks"), EXTRAS)
def test_extras_in_other_forms(write: Write, name: str, extras: dict[str, Any], checks: list[str]) -> None:
    assert found(write(name, lambda records: [it.update(extras) for it in records])) == checks


def test_the_age_that_is_allowed(write: Write) -> None:
    folder = write("prime", lambda records: [it.update(off_policy_steps=3) for it in records])
    assert found(folder) == []
    assert found(folder, max_staleness=2) == ["versions"]


def test_one_rollout_older_than_all_others(write: Write) -> None:
    assert found(write("prime_trace", lambda records: records[9].update(off_policy_steps=3))) == ["versions"]


def test_tools_are_named_by_hand(write: Write) -> None:
    def plain(records: list[dict[str, Any]]) -> None:
        for it in records:
            it["prompt"], it["completion"] = "1 + 2?", "It is 3."

    folder = write("trl", plain)
    assert found(folder) == []
    assert found(folder, tools=("calculator",)) == ["tools"]


def test_a_line_that_a_kill_tore_is_left_out(write: Write) -> None:
    folder = write("verl")
    path = folder / "2.jsonl"
    path.write_text(path.read_text()[:-40])
    report = audit(folder)
    assert (report.rows, report.findings) == (31, [])


def test_files_of_others_are_left_out(write: Write) -> None:
    folder = write("prime")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    (folder / "half.parquet").write_bytes(b"PAR1")
    report = audit(folder)
    assert (report.rows, report.findings) == (32, [])
    assert report.notes == ["Left out, as they hold no rollouts: half.parquet, metrics.jsonl."]


@pytest.mark.parametrize("content", [None, "", "{not json", '{"a": 1}\n'])
def test_what_is_no_dump_is_an_error_that_says_what_was_looked_for(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "data.jsonl").write_text(content)
    for path in (tmp_path, *tmp_path.iterdir(), tmp_path / "missing"):
        with pytest.raises(DataError) as raised:
            audit(path)
        assert "completions_<step>.parquet" in str(raised.value.hint)


def test_a_run_without_episodes(write: Write) -> None:
    folder = write("toolrl")
    shutil.rmtree(folder / "episodes")
    with pytest.raises(DataError, match="no episodes"):
        audit(folder)
