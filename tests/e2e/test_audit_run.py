"""`toolrl audit` on the session's own runs: they have no findings, and what is broken in a copy is found."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def drift(record: Record) -> None:
    ids, start = record["ids"], record["prompt_length"]
    ids[start] = next(token for token in ids if token != ids[start])


def mask(record: Record) -> None:
    answer = record["turns"][0]["segments"][0]["tokens"][1] + 1
    record["loss_mask"][answer] = 1


def stale(record: Record) -> None:
    record["weight_versions"] = [min(version, 0) for version in record["weight_versions"]]


def credit(record: Record) -> None:
    record["rewards"][0]["turn"] = 9


def truncated(record: Record) -> None:
    record["stop_reason"] = "max_turns"
    record["reward"] = record["rewards"][0]["value"] = 1.0


def silent(record: Record) -> None:
    for turn in record["turns"]:
        turn["items"], turn["calls"] = [], []


def constant(record: Record) -> None:
    record["rewards"] = [{"turn": None, "source": "reward:exact", "value": 0.5, "weight": 1.0}]
    record["reward"] = 0.5


FAULTS = {
    "continuation": drift, "masks": mask, "versions": stale, "advantages": credit, "truncation": truncated,
    "tools": silent, "rewards": constant,
}  # fmt: skip
IN_ALL = {"tools", "rewards"}


def broken(run: Path, copy: Path, check: str) -> None:
    """A copy of the run with a fault in one rollout that called a tool, or in all."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    left = 10**9 if check in IN_ALL else 1
    for path in sorted((copy / "episodes").glob("*.gz"), reverse=True):
        records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for record in records:
            called = len(record["turns"]) > 1 and record["turns"][0]["calls"] and record["step"] > 1
            if left and (check in IN_ALL or (called and record["kind"] == "train")):
                FAULTS[check](record)
                left -= 1
        path.write_bytes(gzip.compress("".join(json.dumps(it) + "\n" for it in records).encode()))
    assert not left or check in IN_ALL, "a rollout was broken"


def test_runs_are_clean_and_faults_are_found(here: Callable[..., Any], trained: Any, tmp_path: Path) -> None:
    done = here("audit", "runs/grpo", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"]) == (0, []), done.stdout
    assert report["checks"]["continuation"]["rows"] == report["checks"]["masks"]["rows"] == report["rows"]
    for check in FAULTS:
        copy = tmp_path / check
        broken(trained.folder.directory, copy, check)
        done = here("audit", str(copy), "--json")
        assert done.returncode == 1
        assert {finding["check"] for finding in json.loads(done.stdout)["findings"]} == {check}
