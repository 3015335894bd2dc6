"""Named tensors from the trainer's process to others, in flat buckets over a broadcast.

Two sizes and a table of its tensors precede each bucket. So receivers need no list of tensors beforehand, and the
sender needs no more memory than a bucket. Each tensor comes with its digest. A bucket lives as long as the
tensors that were taken out of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl_plugin_torch.probe import digests
from toolrl_plugin_torch.sharding.collective_group import Rendezvous, broadcast

BUCKET_BYTES = 64 * 2**20
"""A bucket is sent once it has so many; a greater tensor is a bucket by itself."""
_ALIGNED = 16
"""Bytes: where a tensor may begin in a bucket."""


def buckets(tensors: Iterable[tuple[str, torch.Tensor]], device: str = "cpu") -> Iterator[tuple[bytes, torch.Tensor]]:
    """Tensors as buckets: the table of each, and its bytes."""
    table: list[Any] = []
    parts: list[torch.Tensor] = []
    size = 0
    for name, tensor in tensors:
        part = tensor.detach().contiguous().view(-1).view(torch.uint8)
        if parts and size + len(part) > BUCKET_BYTES:
            yield _packed(table, parts, size, device)
            table, parts, size = [], [], 0
        of_it = digests([(name, tensor)])[name]
        table.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size, of_it))
        parts.append(part)
        size += -(-len(part) // _ALIGNED) * _ALIGNED
    if parts:
        yield _packed(table, parts, size, device)


def send(at: Rendezvous, packed: Iterable[tuple[bytes, torch.Tensor]]) -> None:
    """Send buckets to all receivers. Raises TransferBrokenError."""

    def messages() -> Iterator[torch.Tensor]:
        for table, data in packed:
            yield _on(at, torch.tensor([len(table), len(data)]))
            yield _on(at, torch.frombuffer(bytearray(table), dtype=torch.uint8))
            yield _on(at, data)
        yield _on(at, torch.zeros(2, dtype=torch.int64))

    for _ in broadcast(at, messages()):
        pass


def receive(at: Rendezvous) -> Iterator[tuple[str, torch.Tensor]]:
    """The sender's tensors, one at a time. Raises TransferBrokenError, and EngineError for one that arrives changed."""
    sizes = _on(at, torch.zeros(2, dtype=torch.int64))

    def messages() -> Iterator[torch.Tensor]:
        while True:
            yield sizes
            if not sizes[0]:
                return
            for size in sizes.tolist():
                yield torch.empty(size, dtype=torch.uint8, device=sizes.device)

    arriving = broadcast(at, messages())
    while int(next(arriving)[0]):
        table, data = bytes(next(arriving).cpu().numpy()), next(arriving)
        for name, dtype, shape, start, wanted in json.loads(table):
            kind = getattr(torch, dtype)
            count = kind.itemsize * torch.Size(shape).numel()
            tensor = data[start : start + count].view(kind).view(shape)
            if digests([(name, tensor)])[name] != wanted:
                raise EngineError(f"{name!r} arrived with other bytes than it was sent with", where="engine")
            yield name, tensor
    for _ in arriving:  # The end, which all members reach together.
        pass


def _packed(table: list[Any], parts: list[torch.Tensor], size: int, device: str) -> tuple[bytes, torch.Tensor]:
    data = torch.empty(size, dtype=torch.uint8, device=device)
    for (*_, start, _), part in zip(table, parts, strict=True):
        data[start : start + len(part)] = part
    return json.dumps(table).encode(), data


def _on(at: Rendezvous, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cuda() if at.backend == "nccl" else tensor.cpu()
