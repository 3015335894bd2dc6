"""Ranks of torchrun, each with a vLLM of its own that joins their process group and leaves it whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from vllm_help import needs_vllm, run_config, site

pytestmark = [needs_vllm, pytest.mark.timeout(600)]


def test_two_ranks_train_and_sample_from_what_they_train(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_config(tmp_path, reward="uneven")))
    paths = os.pathsep.join([str(site(tmp_path / "site")), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "toolrl", "train", "run.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert 0.0 < line["logprob_mismatch/max"] < 1e-4
        assert line["grad_norm"] > 0.0
