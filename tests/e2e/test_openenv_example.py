"""OpenEnv's example runs from servers and model to table and report with a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "openenv", "fastmcp", "toolrl_plugin_openenv", "toolrl_plugin_qwen",
             "toolrl_plugin_transformers"):  # fmt: skip
    pytest.importorskip(name, reason=f"{name} isn't installed; nox -s openenv has all that this needs")

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "openenv" / "two_environments.py"


def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--dir", "runs", "--sft-steps", "3", "--steps", "2"]
    command += ["--server-python", sys.executable]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Mean reward of held-out tasks" in done.stdout
    assert "before" in done.stdout
    assert "after" in done.stdout
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    assert set(summary["before"]) == set(summary["after"]) == {"vault", "guess"}
    assert (tmp_path / summary["report"]).is_file()
    for name, steps in (("warmup", 3), ("grpo", 2)):
        lines = [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        assert max(line["step"] for line in lines) == steps
        assert all(line.get("errors/rate", 0) == 0 for line in lines)
