"""vLLM in rollout workers on Ray: started there, given new weights by each way, and compared with the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_help import check_learned, learning_config, needs_vllm, train

pytest.importorskip("ray", reason="needs ray: pip install 'toolrl[cluster]'")

pytestmark = [needs_vllm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("options", [{}, {"separate_process": True}], ids=["inside", "apart"])
def test_a_worker_samples_from_the_weights_that_are_trained(tmp_path: Path, options: dict[str, Any]) -> None:
    config = learning_config(tmp_path, **options)
    config["cluster"] = {"rollout_workers": 1, "worker_cpus": 1}
    lines = train(tmp_path, config)
    check_learned(lines)
    assert all(line["cluster/workers"] == 1.0 for line in lines)
