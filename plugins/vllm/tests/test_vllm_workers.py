"""vLLM in rollout workers on Ray: started there, given new weights by each way, and compared with the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from vllm_help import needs_vllm, run_config, site

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

pytestmark = [needs_vllm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("apart", [False, True])
def test_a_worker_samples_from_the_weights_that_are_trained(tmp_path: Path, apart: bool) -> None:
    config = run_config(tmp_path, reward="uneven", separate_process=apart)
    config["cluster"] = {"rollout_workers": 1, "worker_cpus": 1}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    paths = os.pathsep.join([str(site(tmp_path / "site")), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "toolrl", "train", "run.yaml", "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert 0.0 < line["logprob_mismatch/max"] < 1e-4
        assert line["grad_norm"] > 0.0, "it was trained"
        assert line["cluster/workers"] == 1.0
