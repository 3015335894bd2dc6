"""verl's Sandbox Fusion guide runs from its files to a report with a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "pyarrow", "aiohttp", "toolrl_plugin_verl", "toolrl_plugin_sandbox_fusion",
             "toolrl_plugin_python", "toolrl_plugin_qwen", "toolrl_plugin_transformers"):  # fmt: skip
    pytest.importorskip(name)

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "sandbox-fusion"


@pytest.fixture(autouse=True)
def _needs_isolation() -> None:
    """The server refuses to start where programs can't be isolated."""
    from toolrl.errors import ToolrlError
    from toolrl_plugin_sandbox_fusion.serve import check

    try:
        check()
    except ToolrlError as error:
        pytest.skip(f"no program can be isolated here: {error}")


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_example_runs(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLE / "example.py"), "--dir", "work", "--sft-steps", "3", "--steps", "2")
    assert "before GRPO" in said
    assert "after GRPO" in said
    assert "'wandb' isn't there" in said  # What the conversion couldn't carry over.
    assert "for their place, on average" in said
    work = tmp_path / "work"
    assert (work / "grpo" / "report.html").is_file()
    config = (work / "grpo.yaml").read_text()
    assert "${HERE}/sandbox_fusion_tool_config.yml" in config
    for step in (1, 2):
        lines = [json.loads(line) for line in (work / "dumps" / f"{step}.jsonl").read_text().splitlines()]
        assert len(lines) == 16 * 8
        assert all({"input", "output", "gts", "score", "step"} <= set(line) for line in lines)
        assert {line["step"] for line in lines} == {step}
    assert len((work / "dumps" / "val" / "0.jsonl").read_text().splitlines()) == 96
