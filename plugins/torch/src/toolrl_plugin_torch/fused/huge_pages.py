"""Large tensors of main memory in huge pages.

A large tensor that is made anew for each step costs a page fault for every four kibibytes, and one that is read here
and there a look into the page table for each of its pages. In pages of two mebibytes both are rare. Linux gives them to
who asks; where they cannot be had, the tensor is an ordinary one.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Sequence

import torch

_HUGE = 1 << 21
_WORTH = 2 * _HUGE
"""Bytes from which on huge pages are asked for: a smaller tensor would leave much of its last page unused."""
_KEPT = 1 << 30
"""Bytes that a `Memory` keeps at most."""
_CAN = all(hasattr(mmap, name) for name in ("MADV_HUGEPAGE", "MAP_PRIVATE", "MAP_ANONYMOUS"))


def new_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A contiguous tensor of zeros. On a CPU its memory goes back as soon as nothing refers to it any more."""
    count = math.prod(shape)
    block = _block(count * dtype.itemsize) if device.type == "cpu" else None
    if block is None:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return torch.frombuffer(block, dtype=dtype, count=count).view(tuple(shape))


def _block(size: int) -> mmap.mmap | None:
    """Zeros in huge pages; None where they can't be had or don't pay."""
    if not _CAN or size < _WORTH:
        return None
    try:
        # Private: pages that processes share are small ones nearly everywhere.
        block = mmap.mmap(-1, -(-size // _HUGE) * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them, or no memory: torch says so in its own way
        return None
    return block


class Memory:
    """Memory for large tensors of a CPU that each step makes anew: it is used again once nothing refers to the
    tensor that had it, whoever that was. Up to `_KEPT` bytes are kept; what goes beyond is ordinary memory.

    A fresh page has to be cleared, and on a virtual machine found first, which takes longer than filling it.
    """

    def __init__(self) -> None:
        self._blocks: list[mmap.mmap] = []
        self._lock = threading.Lock()
        """A block that was found has to be referred to before another thread looks."""

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        # A copy of who has one, or one that is sent elsewhere, begins with none of it.
        return Memory, ()

    def take(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous tensor; what it holds is left from before."""
        count = math.prod(shape)
        with self._lock:
            block = self._find(count * dtype.itemsize)
        if block is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return torch.frombuffer(block, dtype=dtype, count=count).view(tuple(shape))

    def _find(self, size: int) -> mmap.mmap | None:
        if size < _WORTH:
            return None
        free = [number for number in range(len(self._blocks)) if _references(self._blocks[number]) == _UNUSED]
        fitting = [number for number in free if size <= len(self._blocks[number]) <= 2 * size]
        if fitting:
            return self._blocks[min(fitting, key=lambda number: len(self._blocks[number]))]
        # Some to spare: the next step's tensors have other sizes.
        ample = (-(-size // _HUGE) + size // 8 // _HUGE) * _HUGE
        above = sum(map(len, self._blocks)) + ample - _KEPT
        if above > sum(len(self._blocks[number]) for number in free):
            return None
        for number in reversed(free):
            if above <= 0:
                break
            above -= len(self._blocks.pop(number))
        block = _block(ample)
        if block is not None:
            self._blocks.append(block)
        return block


def _references(block: mmap.mmap) -> int:
    """How many there are. Every tensor that has the block's memory, or a part of it, holds one."""
    return sys.getrefcount(block)


# As `_find` counts: how often an interpreter counts the call itself is its own affair.
_list = [mmap.mmap(-1, 1)]
_UNUSED = _references(_list[0])
