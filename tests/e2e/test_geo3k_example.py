"""The example with pictures runs from problems to report, with a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "pyarrow", "PIL", "toolrl_plugin_geo3k", "toolrl_plugin_qwen"):
    pytest.importorskip(name)

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "geo3k" / "example.py"


def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--dir", "runs", "--sft-steps", "3", "--steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "before GRPO" in done.stdout
    assert "after GRPO" in done.stdout
    assert (tmp_path / "runs" / "grpo" / "report.html").is_file()
