"""AdamW whose two averages have 8 bits: block-wise dynamic quantisation (arXiv 2110.02861), by kernels of bitsandbytes.

Each block of 256 neighbouring elements has a float32 scale, the block's largest absolute value; an element is the index
of its nearest value in a table of 256. So both averages of a parameter take 2.03 bytes an element in place of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

BLOCK = 256
"""Elements that share a scale: the size that bitsandbytes' kernels are compiled for."""
SMALLEST = 4096
"""Elements from which a tensor is quantised, as by default in bitsandbytes: little is saved on smaller ones."""


def quantises(weight: torch.Tensor) -> bool:
    """Whether this weight's averages have 8 bits. The kernels expect contiguous float32."""
    return weight.numel() >= SMALLEST and weight.dtype == torch.float32 and weight.is_contiguous()


def zeros(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The averages of a weight before the first step: codes of the weight's shape, and a scale for each block."""
    found = {}
    for kind in ("exp_avg", "exp_avg_sq"):
        found[kind] = torch.zeros_like(weight, dtype=torch.uint8)
        found[f"{kind}_scale"] = weight.new_zeros(-(-weight.numel() // BLOCK))
    return found


@torch.no_grad()
def update(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """AdamW's next step on a weight, in place. `state["step"]` has the number of steps before it."""
    from bitsandbytes.functional import optimizer_update_8bit_blockwise

    signed, unsigned = _tables(weight.device)
    optimizer_update_8bit_blockwise(
        "adam",  # With decay of the weight itself, so it is AdamW.
        gradient.contiguous(),
        weight,
        state["exp_avg"],
        state["exp_avg_sq"],
        beta1=betas[0],
        beta2=betas[1],
        beta3=0.0,
        alpha=0.0,
        eps=eps,
        step=int(state["step"]) + 1,
        lr=rate,
        qmap1=signed,
        qmap2=unsigned,
        absmax1=state["exp_avg_scale"],
        absmax2=state["exp_avg_sq_scale"],
        weight_decay=weight_decay,
    )


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The values that codes stand for: of the average of gradients, and of that of their squares."""
    from bitsandbytes.functional import create_dynamic_map

    return create_dynamic_map(signed=True).to(device), create_dynamic_map(signed=False).to(device)
