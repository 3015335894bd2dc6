"""OpenEnv's example runs from servers and model to table and report with a few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "openenv", "fastmcp", "toolrl_plugin_openenv", "toolrl_plugin_qwen",
             "toolrl_plugin_transformers"):  # fmt: skip
    pytest.importorskip(name, reason=f"{name} isn't installed; nox -s openenv has all that this needs")

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "openenv" / "two_environments.py"


def test_the_example_runs(run_script: Any, tmp_path: Path) -> None:
    few = ("--dir", "runs", "--sft-steps", "3", "--steps", "2", "--server-python", sys.executable)
    said = run_script(tmp_path, EXAMPLE, *few)
    assert "Mean reward of held-out tasks" in said
    assert "before" in said
    assert "after" in said
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    assert set(summary["before"]) == set(summary["after"]) == {"vault", "guess"}
    assert (tmp_path / summary["report"]).is_file()
    for name, steps in (("warmup", 3), ("grpo", 2)):
        lines = [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        assert max(line["step"] for line in lines) == steps
        assert all(line.get("errors/rate", 0) == 0 for line in lines)
