"""The script for a machine with a GPU in its dry run: parts run and are kept, and one that fails stops no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
for name in ("transformers", "qwen", "calculator", "math"):
    pytest.importorskip(f"toolrl_plugin_{name}")

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "measure.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_measured_is_kept(tmp_path: Path) -> None:
    done = measure("decode", "update", "exact", "--dry-run", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == ["card", "decode:tiny", "update:tiny", "exact:tiny"]
    assert {result["status"] for result in found.values()} == {"ok"}
    card, decode, update, exact = (result["figures"] for result in found.values())
    assert card["matmul"]["float32"] > 1e8
    for row in decode["rows"]:
        assert row["whole_tokens_per_second"] > 0
        assert row["limit_seconds"] == pytest.approx(row["bytes_read"] / card["bandwidth"])
    whole, shared = update["rows"]
    assert shared["operations"] < whole["operations"]
    assert exact["mismatch"]["float32"]["shared"]["max"] < 1e-4
    assert exact["gradients"]["float64"]["shared"]["max"] < 1e-6
    assert "| mismatch float32 shared max |" in (tmp_path / "results.md").read_text()
    assert "[exact:tiny] done earlier" in measure("exact", "--dry-run", "--out", str(tmp_path)).stdout


def test_a_part_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    done = measure("decode", "learn", "--device", "cpu", "--model", str(broken), "--out", str(tmp_path))
    assert done.returncode == 1
    assert "[decode:broken] failed" in done.stdout
    assert "it has no config.json" in done.stdout
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["learn:broken"]["status"] == "skipped"
    assert "--data" in found["learn:broken"]["reason"]
