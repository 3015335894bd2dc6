"""`toolrl audit` on clean and broken dumps of each system."""

from __future__ import annotations

import importlib
import json
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


@pytest.mark.parametrize("version", ["0.3", "v1"])
def test_older_and_newer_dumps_of_verl(write: Write, version: str, faults: Any) -> None:
    assert audit(write("verl", version=version)).findings == []
    assert found(write("verl", faults["rewards"]["verl"], version=version)) == ["rewards"]


def test_batches_for_the_trainer_of_prime_rl(tmp_path: Path) -> None:
    """`rollouts.bin`: `TrainingBatch`, array_like, of prime_rl/transport/types.py; its first fields by version."""
    import msgpack

    split = [[1, 2], [False, False], [3, 4], [True, True], [-0.5, -0.5], [1.0, 1.0], "env", None, 0.5]
    whole = [
        [1, 2, 3],
        [False, True, True],
        [0.0, -0.5, -0.5],
        [1.0] * 3,
        "env",
        [["rl", [0.0, 0.5, 0.5], [False, True, True]]],
    ]
    wrong = [*whole[:5], [["rl", [0.5, 0.5, 0.0], [True, True, False]]]]
    path = tmp_path / "rollouts" / "step_3" / "rollouts.bin"
    path.parent.mkdir(parents=True)
    for samples, checks in (
        ([split, whole], []),
        ([[*split[:1], [True, False], *split[2:]]], ["masks"]),
        ([wrong], ["advantages"]),
    ):
        path.write_bytes(msgpack.packb([samples, 3]))
        assert sorted(set(found(tmp_path))) == checks
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match="can't be read"):
        audit(tmp_path)


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


def test_what_a_format_does_not_hold_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(write("trl"))]) == 0
    printed = capsys.readouterr().out
    assert "masks         -" in printed.replace("\x1b", "")
    assert "Not checked: TRL's file keeps texts, no tokens" in printed
    assert "Nothing found." in printed


def test_exit_status_and_json(write: Write, faults: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write("prime", faults["masks"]["prime"]))
    assert main(["audit", folder, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert finding["check"] == "masks"
    assert finding["examples"][0]["place"] == "rollouts/step_1/train_rollouts.jsonl:5"
    assert told["checks"]["continuation"]["rows"] == 32
    assert main(["audit", folder, "--skip", "masks"]) == 0


MASK, TOOLS_TOO, SHIFTED = [1, 1, 1, 0, 0, 1, 1], [1] * 7, [1, 0, 0, 1, 1, 1, 1]
EXTRAS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("verl", {"response_mask": TOOLS_TOO, "loss_mask": MASK}, []),
    ("trl", {"completion_ids": list(range(7)), "completion_mask": TOOLS_TOO, "tool_mask": MASK}, []),
    ("trl", {"completion_ids": list(range(7)), "completion_mask": TOOLS_TOO, "tool_mask": TOOLS_TOO}, ["masks"]),
    ("verl", {"response_mask": SHIFTED, "rollout_log_probs": [-0.5] * 3 + [0.0] * 3 + [-0.5]}, ["masks"]),
    ("verl", {"finish_reason": {"type": "length", "length": 7}}, ["truncation"]),
    ("verl", {"finish_reasons": ["stop", "length"]}, ["truncation"]),
    ("verl", {"termination_reason": "MAX_RESPONSE_LENGTH_EXCEEDED"}, ["truncation"]),
    ("verl", {"turn_prompt_ids": [[1], [1, 2, 3, 9]], "turn_response_ids": [[2, 3], [4]]}, []),
    ("verl", {"turn_prompt_ids": [[1], [1, 2, 5, 9]], "turn_response_ids": [[2, 3], [4]]}, ["continuation"]),
    ("verl", {"turns": [{"prompt": [1], "response": [2]}, {"prompt": [1, 5], "response": [4]}]}, ["continuation"]),
]


@pytest.mark.parametrize(("name", "extras", "checks"), EXTRAS)
def test_extras_in_other_forms(write: Write, name: str, extras: dict[str, Any], checks: list[str]) -> None:
    assert found(write(name, lambda records: [it.update(extras) for it in records])) == checks


def test_advantages_of_tokens_are_compared_in_their_group(write: Write) -> None:
    def mix(sign: float) -> Callable[[list[dict[str, Any]]], None]:
        def change(records: list[dict[str, Any]]) -> None:
            for it in records:
                value = sign * (it["score"] - 0.2)  # normalised over a batch, so a group's sum isn't 0
                it |= {"response_mask": MASK, "advantages": [value * bit for bit in MASK]}

        return change

    assert found(write("verl", mix(1))) == []
    assert found(write("verl", mix(-1))) == ["advantages"]


@pytest.mark.parametrize("packed", ["gzip", "bz2", "lzma"])
def test_packed_files_in_nested_folders(write: Write, packed: str) -> None:
    folder = write("verl")
    (folder / "a" / "b").mkdir(parents=True)
    for path in folder.glob("*.jsonl"):
        suffix = {"gzip": ".gz", "bz2": ".bz2", "lzma": ".xz"}[packed]
        data = importlib.import_module(packed).compress(path.read_bytes())
        (folder / "a" / "b" / f"{path.name}{suffix}").write_bytes(data)
        path.unlink()
    assert (audit(folder).rows, found(folder)) == (32, [])


def test_the_age_that_is_allowed(write: Write) -> None:
    folder = write("prime", lambda records: [it.update(off_policy_steps=3) for it in records])
    assert found(folder) == []
    assert found(folder, max_staleness=2) == ["versions"]
    (folder / "orchestrator.toml").write_text("[orchestrator]\nmax_off_policy_steps = 2\n")
    assert found(folder) == ["versions"]


def test_one_rollout_older_than_all_others(write: Write) -> None:
    assert found(write("prime_trace", lambda records: records[9].update(off_policy_steps=3))) == ["versions"]
    assert found(write("verl", lambda records: [it.update(rollout_policy_version=it["step"]) for it in records])) == []


def test_a_reward_that_stops_varying(write: Write) -> None:
    """A reward function that fails from the second step on."""
    records_of = {"verl": "score", "prime": "reward"}
    for name, field in records_of.items():
        folder = write(name, lambda records, field=field: [it.update({field: 0.0}) for it in records[16:]])
        assert set(found(folder)) - {"advantages"} == {"rewards"}


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
    (folder / "rollouts" / "notes.jsonl").write_text("")
    (folder / "half.parquet").write_bytes(b"PAR1")
    report = audit(folder)
    assert (report.rows, report.findings) == (32, [])
    assert all(name in " ".join(report.notes) for name in ("metrics.jsonl", "half.parquet", "notes.jsonl"))


@pytest.mark.parametrize("content", [None, "", "{not json", '{"a": 1}\n'])
def test_what_is_no_dump_is_an_error_that_says_what_was_looked_for(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "data.jsonl").write_text(content)
    for path in (tmp_path, *tmp_path.iterdir(), tmp_path / "missing"):
        with pytest.raises(DataError) as raised:
            audit(path)
        assert "completions_<step>.parquet" in str(raised.value.hint)


def test_several_runs_and_a_run_without_episodes(write: Write) -> None:
    folder = write("toolrl")
    with pytest.raises(DataError, match="several runs") as raised:
        audit(folder.parent)
    assert "toolrl" in str(raised.value.hint)
    assert audit(folder / "episodes").rows == 32
    shutil.rmtree(folder / "episodes")
    with pytest.raises(DataError, match="no episodes"):
        audit(folder)
