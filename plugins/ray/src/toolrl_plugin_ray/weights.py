"""What of a model's weights goes to the workers, and how a worker writes and verifies them.

Only what is trained travels, and buffers: every worker loads the model itself, from where the trainer did, so what is
frozen is there already. Tied tensors travel once. After each transfer the worker compares digests of all its tensors
with the trainer's (`toolrl_plugin_torch.probe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_torch.probe import check_digests, digests


def frozen_names(module: Any) -> set[str]:
    """Parameters that no update changes, a tied one under each of its names."""
    every = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in every if not parameter.requires_grad}


def distinct(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those of one storage once."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape))
        if not tensor.numel() or identity not in seen:
            seen.add(identity)
            yield name, tensor


def buckets(tensors: Mapping[str, Any], left_out: set[str], size: int) -> Iterator[dict[str, Any]]:
    """Tensors in groups of about `size` bytes, on the CPU and contiguous; those of one storage once."""
    bucket: dict[str, Any] = {}
    held = 0
    for name, tensor in distinct({name: tensor for name, tensor in tensors.items() if name not in left_out}):
        if bucket and held + tensor.nbytes > size:
            yield bucket
            bucket, held = {}, 0
        bucket[name] = tensor.detach().cpu().contiguous()
        held += tensor.nbytes
    if bucket:
        yield bucket


class WeightWriter:
    """Writes tensors that arrive into a module's own."""

    def __init__(self, module: Any) -> None:
        self._own: dict[str, Any] = module.state_dict()
        self._frozen = frozen_names(module)
        self._written: set[int] = set()

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Copy these. Raises EngineError where the module has no such tensors."""
        for name, tensor in tensors.items():
            target = self._own.get(name)
            if target is None or target.shape != tensor.shape:
                found = "no such tensor" if target is None else f"one of shape {tuple(target.shape)}"
                raise EngineError(
                    f"the trainer sent {name!r} of shape {tuple(tensor.shape)}, and the worker's model has {found}",
                    where="model.path",
                    hint="Every node must load the same model with the same transformers.",
                )
            with torch.no_grad():
                target.copy_(tensor)
            self._written.add(target.data_ptr())

    def check_complete(self) -> None:
        """Raises EngineError where a tensor that is trained was never written."""
        missing = [
            name
            for name, it in self._own.items()
            if name not in self._frozen and it.numel() and it.data_ptr() not in self._written
        ]
        if missing:
            raise EngineError(
                f"the trainer's weights lack {len(missing)} tensors, {missing[0]!r} among them", where="cluster"
            )


def verify(update: WeightUpdate, module: Any) -> None:
    """Raises EngineError where a module's tensors, frozen ones too, aren't bit for bit the trainer's."""
    check_digests(
        digests(distinct(module.state_dict())),
        update.digests,
        owner=f"after a transfer of version {update.version} a rollout worker",
        hint="Every node must load the same model.",
    )
