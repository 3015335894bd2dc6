"""On a machine with FlashInfer and without nvcc nothing that a start chooses has to be compiled with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pretend_cuda
import pytest
import torch
from help_cuda import save_model, start
from vllm.config import set_current_vllm_config
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.sample.sampler import Sampler

GPUS = {"A100": (8, 0), "L40": (8, 9), "H100": (9, 0), "B200": (10, 0)}


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pretend_cuda, "capability", GPUS[request.param])
    return request.param


def test_the_sampler_of_the_warm_up_is_torchs(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    sampler = Sampler(logprobs_mode="raw_logprobs").topk_topp_sampler  # As vLLM's runner makes it.
    assert sampler.forward == sampler.forward_native


@pytest.mark.parametrize("options", [{}, {"tensor_parallel": 2}, {"quantization": "fp8"}])
def test_neither_attention_nor_fused_operators_are_flashinfers(
    gpu: str, options: dict[str, Any], tmp_path: Path
) -> None:
    save_model(tmp_path / "model")
    config, _ = start(tmp_path / "model", options)
    assert not config.compilation_config.pass_config.fuse_allreduce_rms
    with set_current_vllm_config(config):
        backend = get_attn_backend(128, torch.bfloat16, "auto")
    assert "FLASHINFER" not in backend.get_name()
