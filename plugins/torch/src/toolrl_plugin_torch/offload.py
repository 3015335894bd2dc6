"""Tensors that are kept on the CPU between their uses: `trainer.offload`.

Where rollout and training share a device, what only training needs (AdamW's averages and float32 masters, the KL term's
reference, a critic) makes room for the engine's cache. `optimizer.py` streams its state by `HostTransfers`. A model is
on the device inside of its context only:

    with offloaded:        # on the device
        reference(inputs)
    # on the CPU

A tensor stays the same object; the place of its data changes. Copies on the CPU are pinned and kept, so each move is
one transfer and nothing is allocated there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_SMALL = 4096
"""Bytes below which a tensor stays on the device: moving it takes longer than it is worth."""


class InPlace:
    """No transfers: what is kept stays on the device that uses it."""

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor's data between its uses."""
        return torch.empty_like(tensor, requires_grad=False)

    def out(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        """Start to put what `back` returned away again; `wait` returns when it is done."""

    def back(self, buffer: torch.Tensor) -> torch.Tensor:
        """The data on the device."""
        return buffer

    def lane(self, number: int) -> AbstractContextManager[Any]:
        """Transfers and work inside of this are done in order, beside those of the next number."""
        return nullcontext()

    def wait(self) -> None:
        """Wait until all that was started is done."""


class HostTransfers(InPlace):
    """Transfers between a device and the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: list[torch.cuda.Stream] = []

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=True)

    def out(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        buffer.copy_(tensor, non_blocking=True)

    def back(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.to(self.device, non_blocking=True)

    def lane(self, number: int) -> AbstractContextManager[Any]:
        # Two streams: the memory of one number's tensors is that of the last but one, which the stream is done with.
        self._streams = self._streams or [torch.cuda.Stream(self.device) for _ in range(2)]
        stream = self._streams[number % 2]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(stream)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give the device's freed memory back, to other processes too."""
        torch.cuda.empty_cache()


def host_transfers(device: torch.device) -> HostTransfers | None:
    """None where the device is the CPU itself."""
    return HostTransfers(device) if device.type == "cuda" else None


def state_transfers(wanted: bool, device: torch.device) -> InPlace:
    """For what an optimizer keeps of parameters on a device: on the CPU where that is wanted and another place."""
    return (host_transfers(device) if wanted else None) or InPlace()


class Offloaded:
    """Some tensors, on the CPU except inside of this context. `tensors` is called each time they leave the device.
    `constant` tensors never change, and aren't copied out again. Contexts may be nested."""

    def __init__(
        self, tensors: Callable[[], Iterable[torch.Tensor]], transfers: HostTransfers, *, constant: bool = False
    ) -> None:
        self._tensors = tensors
        self._transfers = transfers
        self._constant = constant
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By id: a tensor and its copy on the CPU."""
        self._depth = 0

    def __enter__(self) -> Offloaded:
        self._depth += 1
        if self._depth == 1:
            for tensor, buffer in self._kept.values():
                tensor.data = self._transfers.back(buffer)
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.leave()

    def leave(self) -> None:
        """Move all tensors to the CPU; also for the first time."""
        before, self._kept = self._kept, {}
        for tensor in self._tensors():
            if tensor.nbytes < _SMALL or id(tensor) in self._kept:
                continue
            known = before.get(id(tensor))
            buffer = known[1] if known is not None else self._transfers.buffer(tensor)
            if known is None or not self._constant:
                self._transfers.out(tensor, buffer)
            self._kept[id(tensor)] = (tensor, buffer)
        self._transfers.wait()
        for tensor, buffer in self._kept.values():
            tensor.data = buffer
        self._transfers.release()


Context = AbstractContextManager[Any]


def offloaded(
    wanted: bool, tensors: Callable[[], Iterable[torch.Tensor]], device: torch.device, *, constant: bool = False
) -> Context:
    """A context with the tensors on the device, and outside of it on the CPU. It does nothing unless `wanted`, or where
    the device is the CPU."""
    transfers = host_transfers(device) if wanted else None
    if transfers is None:
        return nullcontext()
    found = Offloaded(tensors, transfers, constant=constant)
    found.leave()
    return found


def own_tensors(model: Any, others: Any) -> list[torch.Tensor]:
    """Parameters and buffers of a model that it doesn't share with another one."""
    theirs = {id(tensor) for tensor in (*others.parameters(), *others.buffers())}
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in theirs]
