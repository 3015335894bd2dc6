"""Reads and writes tensors that may be sharded over ranks (`torch.distributed.tensor.DTensor`) or plain."""

from __future__ import annotations

import torch


def full(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor: gathered where it is sharded, which all ranks do together."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def local(value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor; the tensor itself where it is plain. Without a gradient of its own."""
    part: torch.Tensor = value.detach().to_local() if hasattr(value, "to_local") else value
    return part


def as_shard(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is sharded as `like` is, of which this is the rank's part; the part itself where that is plain. The
    part stays where it is, also where that isn't the mesh's device."""
    if not hasattr(like, "full_tensor"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor(part, like._spec, requires_grad=False)


def gathered(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """As `full`; what is sharded is sent and returned in this type."""
    return full(value.detach().to(dtype)) if hasattr(value, "full_tensor") else value


def local_slice(target: torch.Tensor) -> tuple[torch.Tensor, tuple[slice, ...]]:
    """This rank's part of a tensor, and where in the whole one it is."""
    if not hasattr(target, "full_tensor"):
        return target, tuple(slice(0, size) for size in target.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, starts = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    return target.to_local(), tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def put(value: torch.Tensor, target: torch.Tensor) -> None:
    """Write a whole tensor into one of its shape; where that is sharded, each rank writes its own part."""
    with torch.no_grad():
        part, slices = local_slice(target)
        part.copy_(value.detach()[slices])
