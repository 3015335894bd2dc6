"""Reads and writes tensors that may be sharded over ranks (`torch.distributed.tensor.DTensor`) or plain."""

from __future__ import annotations

import torch


def full(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor: gathered where it is sharded, which all ranks do together."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def put(value: torch.Tensor, target: torch.Tensor) -> None:
    """Write a whole tensor into one of its shape; where that is sharded, each rank writes its own part."""
    with torch.no_grad():
        if not hasattr(target, "full_tensor"):
            target.copy_(value)
            return
        from torch.distributed.tensor import distribute_tensor

        local, mesh = target.to_local(), target.device_mesh
        # Every rank has the whole, so nothing is sent.
        whole = value.detach().to(mesh.device_type, target.dtype)
        local.copy_(distribute_tensor(whole, mesh, target.placements, src_data_rank=None).to_local())
