"""Tensors that wait on the CPU between their uses: `trainer.offload`.

Where rollout and training share a device, what only training needs (AdamW's averages and float32 masters, the KL term's
reference, a critic) makes room for the engine's cache. It is fetched for as long as it is used and put back after:

    with waiting:        # on the device
        optimizer.step()
    # on the CPU

A tensor stays the same object; what changes is where its data lies. Copies on the CPU are pinned and kept, so each move
is one transfer and nothing is allocated there twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_log = logging.getLogger(__name__)

_SMALL = 4096
"""Bytes below which a tensor stays where it is: moving takes longer than it is worth."""


class Places:
    """The device and the CPU, and the way between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """Room on the CPU."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def out(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy to the CPU; done when `wait` returns."""
        buffer.copy_(tensor, non_blocking=True)

    def back(self, buffer: torch.Tensor) -> torch.Tensor:
        """A copy on the device. What is computed next waits for it."""
        return buffer.to(self.device, non_blocking=True)

    def wait(self) -> None:
        """Until all copies to the CPU are done."""
        torch.cuda.synchronize(self.device)

    def left(self) -> None:
        """What was freed on the device is for everybody, other processes included."""
        torch.cuda.empty_cache()


def places(device: torch.device) -> Places | None:
    """None for a device from which there is nowhere to go."""
    return Places(device) if device.type == "cuda" else None


class Waiting:
    """Some tensors, on the CPU but inside of its context. `tensors` is asked each time they leave. With `constant` they
    never change, and nothing is copied back. Contexts may be nested."""

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]], where: Places, *, constant: bool = False) -> None:
        self._tensors = tensors
        self._places = where
        self._constant = constant
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By id: a tensor and its copy on the CPU."""
        self._depth = 0

    def __enter__(self) -> Waiting:
        self._depth += 1
        if self._depth == 1:
            for tensor, buffer in self._kept.values():
                tensor.data = self._places.back(buffer)
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.leave()

    def leave(self) -> None:
        """Put everything on the CPU; also for the first time."""
        before, self._kept = self._kept, {}
        for tensor in self._tensors():
            if tensor.nbytes < _SMALL or id(tensor) in self._kept:
                continue
            known = before.get(id(tensor))
            buffer = known[1] if known is not None else self._places.buffer(tensor)
            if known is None or not self._constant:
                self._places.out(tensor, buffer)
            self._kept[id(tensor)] = (tensor, buffer)
        self._places.wait()
        for tensor, buffer in self._kept.values():
            tensor.data = buffer
        self._places.left()


Context = AbstractContextManager[Any]


def waiting(
    wanted: bool, tensors: Callable[[], Iterable[torch.Tensor]], device: torch.device, *, constant: bool = False
) -> Context:
    """The tensors wait on the CPU where that is `wanted` and the device isn't the CPU; else a context that does
    nothing."""
    where = places(device) if wanted else None
    if where is None:
        return nullcontext()
    found = Waiting(tensors, where, constant=constant)
    found.leave()
    return found


def own_tensors(model: Any, others: Any) -> list[torch.Tensor]:
    """Parameters and buffers of a model that another one doesn't have in common with it."""
    theirs = {id(tensor) for tensor in (*others.parameters(), *others.buffers())}
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in theirs]


def warn_where_useless(parts: Iterable[str], device: torch.device) -> None:
    """Say that nothing will be moved, where the model is on the CPU already."""
    if list(parts) and places(device) is None:
        _log.warning("trainer.offload: the model is on the %s, so there is nothing to move", device.type)
