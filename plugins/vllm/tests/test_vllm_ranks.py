"""Ranks of torchrun, each with a vLLM of its own that joins their process group and leaves it whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_help import check_learned, learning_config, needs_vllm, train

pytestmark = [needs_vllm, pytest.mark.timeout(600)]


def test_two_ranks_learn_from_what_their_engines_sample(tmp_path: Path) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check_learned(train(tmp_path, learning_config(tmp_path), *launcher))
