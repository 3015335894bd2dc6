"""Which kernels torch may use: any, or those alone that give the same bits again."""

from __future__ import annotations

import os

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def choose_kernels(device: torch.device, *, deterministic: bool) -> None:
    """Set it for this process; to be called before its first work on a GPU.

    On a GPU there is no deterministic kernel for some operations; those that are needed here are so all the same
    (no two of their additions meet in one place), so torch only warns of them instead of refusing.
    """
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    if device.type != "cuda":
        return
    # While it only warns, the backward passes of fused attention add up in any order. Plain products don't.
    torch.backends.cuda.enable_flash_sdp(not deterministic)
    torch.backends.cuda.enable_mem_efficient_sdp(not deterministic)
    torch.backends.cuda.enable_cudnn_sdp(not deterministic)
    if deterministic:
        # cuBLAS adds up in one order only where each stream has a workspace of a fixed size.
        os.environ.setdefault(_WORKSPACE, ":4096:8")
