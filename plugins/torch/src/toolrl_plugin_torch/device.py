"""The device that a run computes on, and its kernels: any, or those alone that give the same bits again."""

from __future__ import annotations

import os
from functools import cache

import torch

from toolrl.errors import ConfigError

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


def pick_device(wanted: str) -> torch.device:
    """`auto` is cuda where there is one. Raises ConfigError for a device that isn't there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"device: {wanted!r} is no device", hint="Use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device: {wanted!r} was asked for, but torch {torch.__version__} sees no CUDA device",
            hint="Set `device: auto`, or install a CUDA build of torch.",
        )
    return device


def pick_dtype(wanted: str, device: torch.device, stored: torch.dtype | None = None) -> torch.dtype:
    """`auto` is bfloat16 on cuda, and on a CPU that multiplies in it where the model's files hold it; else float32.

    What a CPU can do is asked and not timed: all processes of a run come to the same answer, on busy cores too.
    """
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    if device.type == "cuda":
        return torch.bfloat16
    fits = stored == torch.bfloat16 and device.type == "cpu"
    return torch.bfloat16 if fits and multiplies_bfloat16() else torch.float32


@cache
def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it. Those that only convert take longer than in float32."""
    found = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 hasn't got it
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))


def check() -> str:
    """For `toolrl doctor`: the device that a run would choose."""
    if not torch.cuda.is_available():
        return f"device: cpu ({torch.get_num_threads()} threads)"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"device: cuda ({', '.join(names)})"
