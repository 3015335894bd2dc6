"""Deterministic runs use deterministic kernels on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from toolrl_plugin_torch.device import choose_kernels
from toolrl_plugin_torch.prefixes.tree import grow
from toolrl_plugin_torch.prefixes.tree_attention import CannotShareError, tree_attention

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    choose_kernels(CUDA, deterministic=False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def fused() -> list[bool]:
    cuda = torch.backends.cuda
    return [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()]


def test_a_gpu_is_left_with_products_whose_order_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_kernels(CUDA, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert fused() == [False, False, False]
    assert torch.backends.cuda.math_sdp_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    query = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    with pytest.raises(CannotShareError, match="the run is deterministic"):
        tree_attention(None, query, None, None, None, token_tree=grow([[1, 2]]))
    choose_kernels(CUDA, deterministic=False)
    assert fused() == [True, True, True], "a later run of the process has all kernels again"
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    choose_kernels(CUDA, deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "one that was chosen is kept"


def test_a_cpu_needs_no_more_than_the_flag() -> None:
    choose_kernels(CPU, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert fused() == [True, True, True]
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
