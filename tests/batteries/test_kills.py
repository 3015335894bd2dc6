"""The batteries of kills: one kill of a rollout worker in every run, the rest in `nox -s slow`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def battery(script: str, folder: Path, *words: str) -> dict[str, Any]:
    """What it reports."""
    command = [sys.executable, str(HERE / script), "--dir", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.parametrize(
    "kind", ["rollout", *(pytest.param(it, marks=pytest.mark.slow) for it in ("trainer", "limiter", "mcp", "node"))]
)
def test_a_killed_process_is_replaced_and_every_episode_is_there_once(kind: str, tmp_path: Path) -> None:
    for name in ("ray", "toolrl_plugin_transformers", *(["mcp"] if kind == "mcp" else [])):
        pytest.importorskip(name)
    facts = battery("worker_kill_battery.py", tmp_path / "runs", "--kind", kind, "--kills", "1")
    # How long a recovery takes is for the battery by hand.
    assert [it for it in facts["problems"] if not it.startswith("recovery took")] == []
    assert facts["kills"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--lora",)], ids=["whole", "lora"])
def test_a_killed_run_goes_on_bit_for_bit(words: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    facts = battery("kill_battery.py", tmp_path / "runs", "--kills", "3", *words)
    assert (facts["kills"], facts["different"], facts["problems"]) == (3, 0, [])
